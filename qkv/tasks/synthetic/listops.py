"""The task `listops`: the value of nested lists of digits under MIN, MAX, MED (median) and SM (sum modulo 10).

    tokens    MAX 2 MIN 8 5 X 4 X       X closes a list
    answer                      5

Trees grow as published: a node is a list with probability 1/4, unless it is at the largest depth, and then has 2 to
`arguments` nodes; a tree is kept if its length is in range. Paper: https://arxiv.org/abs/2011.04006.
Answers are not uniform, so the chance line is the share of the most frequent one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import median
from typing import Any, ClassVar

import torch

from qkv.random import derive_seed
from qkv.tasks.base import Preset, register
from qkv.tasks.synthetic.base import Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import LengthOptions, require_range
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch, pad_rows

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}
CLOSE = "X"
MIN_LIST = 4
"""Tokens of the shortest list."""
LIST_PROBABILITY = 0.25
MAX_TRIES = 100_000


@dataclass(frozen=True)
class ListopsOptions(LengthOptions):
    """Sizes of the generated examples."""

    shortest: int = 20
    """Fewest tokens of an example."""
    longest: int = 128
    """Most tokens of a training example."""
    test_lengths: tuple[int, ...] = (40, 128)
    """Most tokens of the examples to test at."""
    depth: int = 6
    """Largest depth of a tree; a digit alone has depth 1."""
    arguments: int = 5
    """Most nodes of a list."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, shortest=MIN_LIST, depth=2, arguments=2)
        require_range(self, longest=self.shortest)
        if min(self.test_lengths) < self.shortest:
            raise ValueError(f"test_lengths must be at least shortest={self.shortest}, got {min(self.test_lengths)}")

    def train_sizes(self) -> tuple[int, int]:
        """Return the most tokens of a training example."""
        return self.longest, self.longest


def small() -> Preset:
    """Return four layers with rotary positions for some minutes on a CPU."""
    return small_decoder(1500, 1e-3, heads=4, hidden_dim=128, layers=4, convolution=0, positions="rope", max_length=128)


def published() -> Preset:
    """Return the sizes of the Long Range Arena: rows of 500 to 2,000 tokens, for a GPU."""
    model: dict[str, Any] = {
        "dim": 512,
        "heads": 8,
        "hidden_dim": 1024,
        "layers": 4,
        "convolution": 0,
        "positions": "rope",
    }
    preset = small_decoder(5000, 1e-3, max_length=2000, **model)
    preset.train.update(warmup=1000, weight_decay=0.1)
    preset.data.update(shortest=501, longest=1999, test_lengths=[1999], depth=10, arguments=10, examples=2000)
    return preset


@register("listops")
class ListopsTask(SyntheticTask):
    """Compute nested lists of minima, maxima, medians and sums."""

    data_options = ListopsOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "published": published}
    names = (*map(str, range(10)), *OPERATIONS, CLOSE)

    @cached_property
    def chance(self) -> float:
        """Share of the most frequent answer of the test split, mean over its lengths."""
        shares = []
        for condition in self.conditions():
            targets = self.examples("test", 0, self.settings.examples, condition).target_ids
            answers = targets[targets != IGNORE_INDEX]
            shares.append(float(answers.bincount().max()) / len(answers))
        return sum(shares) / len(shares)

    def row_length(self, condition: Condition) -> int:
        """Return the size: rows have at most that many tokens."""
        return condition.size

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows of `shortest` to `condition.size` tokens."""
        found = [self._row(derive_seed(draws.seed, draws.purpose, n), condition.size) for n in draws.numbers.tolist()]
        if not found:
            empty = torch.zeros(0, condition.size, dtype=torch.int64)
            return RowBatch(empty, empty)
        return pad_rows(found)

    def _row(self, seed: int, longest: int) -> RowBatch:
        random = Random(seed)  # its random() is the same in every version of Python
        for _ in range(MAX_TRIES):
            tokens: list[int] = []
            value = self._grow(random, 1, tokens, longest)
            if self.settings.shortest <= len(tokens) <= longest:
                ids = torch.tensor([tokens])
                targets = torch.full_like(ids, IGNORE_INDEX)
                targets[0, -1] = value
                return RowBatch(ids, targets)
        own: Any = self.settings
        raise ValueError(
            f"depth={own.depth} and arguments={own.arguments} give no tree of {own.shortest} to {longest} tokens "
            f"in {MAX_TRIES:,} tries"
        )

    def _grow(self, random: Random, depth: int, tokens: list[int], longest: int) -> int:
        """Append the tokens of a tree and return its value; beyond `longest` tokens it ends early."""
        is_list = depth == 1 or random.random() <= LIST_PROBABILITY  # a row that is one digit is never long enough
        if depth == self.settings.depth or not is_list or len(tokens) > longest:
            tokens.append(int(random.random() * 10))
            return tokens[-1]
        operation = int(random.random() * len(OPERATIONS))
        tokens.append(10 + operation)
        nodes = 2 + int(random.random() * (self.settings.arguments - 1))
        values = [self._grow(random, depth + 1, tokens, longest) for _ in range(nodes)]
        tokens.append(len(self.names) - 1)
        return list(OPERATIONS.values())[operation](values)
