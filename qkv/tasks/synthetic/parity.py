"""The task `parity`: whether the number of ones so far is odd. One bit of state, and no way to sum it up.

    tokens    1 0 1 1 0
    answers   1 1 0 1 1

Papers: https://arxiv.org/abs/2207.02098 and https://arxiv.org/abs/2411.12537, whose scaled accuracies at lengths 40 to
256 are 0.02 for a Transformer, 0.02 for DeltaNet with write strengths up to 1, and 1.00 with strengths up to 2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from qkv.tasks.base import Preset, register
from qkv.tasks.synthetic.base import STATE_TRACKER, Condition, SyntheticTask, small_decoder
from qkv.tasks.synthetic.options import LengthOptions
from qkv.tasks.synthetic.rows import IGNORE_INDEX, Draws, RowBatch


@dataclass(frozen=True)
class ParityOptions(LengthOptions):
    """Sizes of the generated examples."""

    every: bool = True
    """Whether training asks after every token, not only after the last."""


def small() -> Preset:
    """Return two layers for a minute on a CPU; write strengths up to 2 need attention=delta+write(largest=2)."""
    return small_decoder(600, 3e-3, max_length=256, attention=STATE_TRACKER)


def published() -> Preset:
    """Return the published sizes, 20,000 steps of 256 rows; training asks after the last token alone."""
    preset = small_decoder(20_000, 1e-3, 256, dim=128, heads=4, max_length=256, attention=STATE_TRACKER)
    preset.train["warmup"] = 2_000
    preset.data["every"] = False
    return preset


@register("parity")
class ParityTask(SyntheticTask):
    """Tell whether the number of ones is odd: trained on short rows, tested on long ones."""

    data_options = ParityOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "published": published}
    scores_last = True
    chance = 0.5
    names = ("0", "1")

    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return rows of `condition.size` bits."""
        bits = draws.integers("bits", condition.size, 2)
        parity = bits.cumsum(1) % 2
        if not self.settings.every:
            parity[:, :-1] = IGNORE_INDEX
        return RowBatch(bits, parity)
