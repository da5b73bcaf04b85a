"""What `copy` and `reverse` share: symbols, a separator, and the symbols again in some order.

    tokens    3 0 3 1 > 3 0 3         the row of `copy`; that of `reverse` ends in > 1 3 0
    answers           3 0 3 1

A row of length n has n symbols. After the separator the model reads the right answers so far, as a language model does.
Paper: https://arxiv.org/abs/2305.19466, which trains on up to 20 symbols and tests on up to 40, by position scheme.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qkv.tasks.base import Preset
from qkv.tasks.synthetic.base import Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import LengthOptions, require_range
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch


@dataclass(frozen=True)
class RepeatOptions(LengthOptions):
    """Sizes of the generated examples."""

    shortest: int = 2
    """Fewest symbols of a training example."""
    longest: int = 20
    """Most symbols of a training example."""
    test_lengths: tuple[int, ...] = (20, 30, 40, 80)
    """Numbers of symbols to test at."""
    symbols: int = 16
    """Different symbols."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, symbols=2)


def small() -> Preset:
    """Return two layers for a minute on a CPU, with rotary positions; positions=... chooses another scheme."""
    return small_decoder(1000, 2e-3, heads=4, hidden_dim=128, convolution=0, positions="rope", max_length=160)


class RepeatTask(SyntheticTask):
    """Write the symbols of a row once more."""

    data_options = RepeatOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}
    scores_rows = True

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols and the separator."""
        return (*map(str, range(self.settings.symbols)), ">")

    @property
    def chance(self) -> float:
        """Accuracy of always guessing the same symbol."""
        return 1 / self.settings.symbols

    @abstractmethod
    def repeated(self, symbols: Tensor) -> Tensor:
        """Return the symbols (rows, length) in the order in which they are to be written."""

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows with `condition.size` symbols."""
        symbols = draws.integers("symbols", condition.size, self.settings.symbols)
        answers = self.repeated(symbols)
        separator = torch.full((len(symbols), 1), self.settings.symbols)
        tokens = torch.cat([symbols, separator, answers[:, :-1]], 1)
        return RowBatch(tokens, torch.cat([torch.full_like(symbols, IGNORE_INDEX), answers], 1))
