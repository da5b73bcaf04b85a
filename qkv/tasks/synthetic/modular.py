"""The task `modular`: the value of a sum of products so far, modulo a small number; a product comes before a sum.

    tokens    - 2 + 3 * 4 - 1
    answers     3   1   0   4        modulo 5

A row of even length begins with a minus sign. The published task is that without brackets, modulo 5.
Papers: https://arxiv.org/abs/2207.02098 and https://arxiv.org/abs/2411.12537, whose scaled accuracies at lengths 40 to
256 are 0.03 for a Transformer, 0.31 for DeltaNet with write strengths up to 1, and 0.97 with strengths up to 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from qkv.tasks.base import Preset, register
from qkv.tasks.synthetic.base import STATE_TRACKER, Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import LengthOptions, require_range
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch

OPERATORS = ("+", "-", "*")


@dataclass(frozen=True)
class ModularOptions(LengthOptions):
    """Sizes of the generated examples."""

    modulus: int = 5
    """Numbers are 0 to modulus - 1."""
    every: bool = True
    """Whether training asks after every number, not only after the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, modulus=2)


def small() -> Preset:
    """Return two layers for some minutes on a CPU."""
    return small_decoder(1500, 3e-3, max_length=256, attention=STATE_TRACKER)


def published() -> Preset:
    """Return the published sizes, 100,000 steps of 256 rows; training asks after the last token alone."""
    preset = small_decoder(100_000, 1e-3, 256, dim=128, heads=4, max_length=256, attention=STATE_TRACKER)
    preset.train.update(warmup=10_000, weight_decay=0.1)
    preset.data["every"] = False
    return preset


@register("modular")
class ModularTask(SyntheticTask):
    """Compute an expression modulo a small number: trained on short rows, tested on long ones."""

    data_options = ModularOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "published": published}
    scores_last = True

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers, then the operators."""
        return (*map(str, range(self.settings.modulus)), *OPERATORS)

    @property
    def chance(self) -> float:
        """Accuracy of the best constant guess on uniform results; products make 0 a little more frequent than that."""
        return 1 / self.settings.modulus

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows of `condition.size` tokens."""
        modulus, length = self.settings.modulus, condition.size
        terms = (length + 1) // 2
        numbers = draws.integers("numbers", terms, modulus)
        operators = draws.integers("operators", terms, len(OPERATORS))  # the one before each number
        operators[:, 0] = 1 - length % 2  # + without a sign, - with one
        tokens = torch.stack([modulus + operators, numbers], -1).flatten(1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        done, product = torch.zeros_like(numbers[:, 0]), torch.zeros_like(numbers[:, 0])
        for time in range(terms):
            number, operator = numbers[:, time], operators[:, time]
            begins = operator != OPERATORS.index("*")
            signed = torch.where(operator == OPERATORS.index("-"), -number, number)
            done = torch.where(begins, done + product, done) % modulus
            product = torch.where(begins, signed, product * number) % modulus
            if self.settings.every or time == terms - 1:
                targets[:, 2 * time + 1] = (done + product) % modulus
        return RowBatch(tokens[:, length % 2 :], targets[:, length % 2 :])
