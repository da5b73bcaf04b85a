"""The task `overwrite`: keys get new values, and the last one is asked for. A sum keeps all of them.

    k1 v1 k2 v2   k2 v3 k1 v4 k2 v5   k2 . k1 .
                                       v5   v4
    pairs         updates              queries, in random order

After the row of pairs each update picks a key at random, with replacement. Token 0 follows a query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from qkv.data.corpora.recall import draw_distinct
from qkv.tasks.base import Preset, register
from qkv.tasks.synthetic.base import Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import SyntheticOptions, read_numbers, require_range
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch


@dataclass(frozen=True)
class OverwriteOptions(SyntheticOptions):
    """Sizes of the generated examples."""

    keys: int = 64
    """Different keys."""
    values: int = 64
    """Different values."""
    pairs: int = 8
    """Keys of one example, each with a first value."""
    updates: int = 24
    """Largest number of updates of a training example; the smallest is 0."""
    test_updates: tuple[int, ...] = (0, 8, 24)
    """Numbers of updates to test at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, pairs=2, updates=0, keys=self.pairs, values=2)
        object.__setattr__(self, "test_updates", read_numbers("test_updates", self.test_updates, 0))

    def train_sizes(self) -> tuple[int, int]:
        """Return the numbers of updates of training examples."""
        return 0, self.updates

    def test_sizes(self) -> tuple[int, ...]:
        """Return the numbers of updates to test at."""
        return self.test_updates


def small() -> Preset:
    """Return one layer with one head and no feed-forward layer, so that its state is all the memory there is."""
    return small_decoder(1000, 5e-3, dim=64, heads=1, layers=1, max_length=512)


@register("overwrite")
class OverwriteTask(SyntheticTask):
    """Recall the last of several values that each key was given."""

    data_options = OverwriteOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}
    axis = "updates"

    @property
    def names(self) -> tuple[str, ...]:
        """The blank, the keys and the values."""
        own = self.settings
        return (".", *(f"k{n}" for n in range(own.keys)), *(f"v{n}" for n in range(own.values)))

    @property
    def chance(self) -> float:
        """Accuracy of always guessing the same value."""
        return 1 / self.settings.values

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows with `condition.size` updates."""
        own, updates = self.settings, condition.size
        keys = draw_distinct(draws.uniform("keys", own.pairs), own.keys)
        changed = draws.integers("updated", updates, own.pairs)
        written = torch.cat(
            [torch.arange(own.pairs).expand(len(keys), -1), changed], 1
        )  # [rows, writes], numbers of keys
        values = draws.integers("values", own.pairs + updates, own.values)
        last = torch.zeros_like(keys)
        for time in range(own.pairs + updates):
            last.scatter_(1, written[:, time, None], values[:, time, None])
        asked = draw_distinct(draws.uniform("order of the queries", own.pairs), own.pairs)
        pairs = torch.stack([1 + keys.gather(1, written), 1 + own.keys + values], -1).flatten(1)
        queries = torch.stack([1 + keys.gather(1, asked), torch.zeros_like(asked)], -1).flatten(1)
        tokens = torch.cat([pairs, queries], 1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, pairs.shape[1] :: 2] = 1 + own.keys + last.gather(1, asked)
        return RowBatch(tokens, targets)
