"""The task `needle`: one key-value pair hidden at some depth of a long row; at the end its value is asked for.

    n3 n7 n7 n1 n2 n5 k4 v9 n0 n2 k4        haystack="noise"
    k7 v2 k1 v9 k8 v8 k4 v9 k3 v2 k4        haystack="pairs": distractors with other keys
                                  v9

Noise asks whether a mechanism keeps a pair for long. Distractors ask, too, whether it forgets what it need not keep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from qkv.errors import unknown_name_error
from qkv.tasks.base import Preset, register
from qkv.tasks.synthetic.base import Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import LengthOptions, read_numbers, require_range
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch

HAYSTACKS = ("noise", "pairs")
SHORTEST = 5
"""Two slots and the query."""


@dataclass(frozen=True)
class NeedleOptions(LengthOptions):
    """Sizes of the generated examples."""

    shortest: int = 16
    """Shortest training example."""
    longest: int = 64
    """Longest training example."""
    test_lengths: tuple[int, ...] = (64, 128, 256, 512)
    """Lengths to test at."""
    test_depths: tuple[int, ...] = (0, 25, 50, 75, 100)
    """Depths to test at, in percent of the haystack before the needle."""
    haystack: str = "pairs"
    """What the needle is hidden in: noise, or pairs (of other keys)."""
    keys: int = 64
    """Different keys."""
    values: int = 64
    """Different values."""
    noise: int = 16
    """Different tokens of noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.haystack not in HAYSTACKS:
            raise unknown_name_error("haystack", self.haystack, HAYSTACKS)
        require_range(self, shortest=SHORTEST, keys=2, values=2, noise=1)
        read_numbers("test_lengths", self.test_lengths, SHORTEST)
        depths = read_numbers("test_depths", self.test_depths, 0)
        if max(depths) > 100:
            raise ValueError(f"test_depths must be at most 100 percent, got {max(depths)}")
        object.__setattr__(self, "test_depths", depths)


def small() -> Preset:
    """Return two layers for a minute on a CPU."""
    return small_decoder(800, 5e-3, max_length=512)


@register("needle")
class NeedleTask(SyntheticTask):
    """Find one key-value pair in a long row, by depth and length: trained on short rows, tested on long ones."""

    data_options = NeedleOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}

    def conditions(self) -> list[Condition]:
        """Return every length with every depth."""
        own = self.settings
        return [Condition(length, depth / 100) for length in own.test_lengths for depth in own.test_depths]

    @property
    def names(self) -> tuple[str, ...]:
        """The blank, the keys, the values and the noise."""
        own = self.settings
        counts = (("k", own.keys), ("v", own.values), ("n", own.noise))
        return (".", *(f"{letter}{n}" for letter, count in counts for n in range(count)))

    @property
    def chance(self) -> float:
        """Accuracy of always guessing the same value."""
        return 1 / self.settings.values

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows of `condition.size` tokens; without a depth it is drawn, too."""
        own, count, slots = self.settings, len(draws.numbers), (condition.size - 1) // 2
        key, value = draws.integers("key", 1, own.keys), draws.integers("value", 1, own.values)
        if condition.depth is None:
            place = draws.integers("place", 1, slots)
        else:
            place = torch.full((count, 1), round(condition.depth * (slots - 1)))
        if own.haystack == "pairs":
            others = (key + 1 + draws.integers("other keys", slots, own.keys - 1)) % own.keys
            hay = torch.stack([1 + others, 1 + own.keys + draws.integers("other values", slots, own.values)], -1)
        else:
            hay = 1 + own.keys + own.values + draws.integers("noise", 2 * slots, own.noise).view(count, slots, 2)
        needle = torch.stack([1 + key, 1 + own.keys + value], -1)  # [rows, 1, 2]
        hay.scatter_(1, place[:, :, None].expand(-1, -1, 2), needle)
        tokens = torch.zeros(count, condition.size, dtype=torch.int64)
        tokens[:, -1:] = 1 + key
        tokens[:, condition.size - 1 - 2 * slots : -1] = hay.flatten(1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, -1:] = 1 + own.keys + value
        return RowBatch(tokens, targets)
