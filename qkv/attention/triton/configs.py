"""How each pass of the kernels of `feature_map_triton` is cut up, as it was measured to be fastest."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a kernel is cut up: tokens a program takes, warps, and loads under way at once."""

    block: int
    warps: int
    stages: int
    registers: int | None = None
    """Of a thread, at most: fewer let more programs live on a processor at the same time."""
    met: int = 64
    """Tokens that a block meets one by one at a time."""
    taken: int = 32
    """Features that are made at a time to read the memory."""

    def options(self) -> dict[str, int | None]:
        """What the compiler is told."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


@dataclass(frozen=True)
class Launches:
    """Of each pass: the sums, the outputs, the gradients of queries, keys and values, and the sums of the way back."""

    write: Launch
    read: Launch
    queries: Launch
    keys: Launch
    values: Launch
    back: Launch
    programs: int = 384
    """How many programs walk at the same time, at least, if the sequence is long enough: three for each processor of a
    chip, and four where each has many features to walk for. Fixed, so that any chip gives the same bits."""


PLAIN = Launches(
    Launch(64, 4, 3), Launch(128, 8, 2), Launch(64, 4, 2), Launch(64, 4, 2), Launch(128, 8, 2), Launch(64, 4, 3)
)
"""Where nothing was measured."""
NARROW = Launches(
    Launch(32, 8, 1),
    Launch(64, 8, 1, met=32),
    Launch(32, 8, 1, met=32, taken=16),
    Launch(32, 8, 1, met=32, taken=16),
    Launch(64, 8, 1, met=32),
    Launch(32, 8, 1),
)
"""For operands of float32 with more than 64 numbers, which otherwise do not fit into a processor's own memory."""
_WIDE_LINEAR = Launches(
    Launch(128, 8, 2),
    Launch(64, 4, 1, 168, met=32),
    Launch(64, 4, 1, 168, met=32),
    Launch(64, 4, 1, 168, met=32),
    Launch(64, 4, 1, 168, met=32),
    Launch(128, 8, 2),
)
FASTEST = {
    "taylor": Launches(
        Launch(64, 4, 3, 168),
        Launch(128, 4, 3, 168, met=32),
        Launch(128, 4, 3, 168, met=32),
        Launch(128, 4, 2, 168, met=32),
        Launch(128, 4, 3, 168, met=16),
        Launch(64, 4, 3, 168),
    ),
    "wide taylor": Launches(
        Launch(64, 4, 3, 168),
        Launch(128, 4, 3, met=32, taken=64),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 3, met=32, taken=64),
        Launch(128, 4, 2),
        programs=512,
    ),
    "linear": Launches(
        Launch(64, 4, 3),
        Launch(64, 4, 1),
        Launch(64, 4, 1, 128),
        Launch(64, 4, 3, 128, met=32),
        Launch(64, 4, 1, 128),
        Launch(64, 4, 3),
    ),
    "elu": Launches(
        Launch(128, 4, 2, 168),
        Launch(64, 4, 1, 128),
        Launch(64, 4, 1, 128),
        Launch(64, 4, 1, 128),
        Launch(64, 4, 1, 128),
        Launch(128, 4, 2, 168),
    ),
    "taylor, 128": Launches(
        Launch(64, 4, 3, 168),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 3, met=32),
        Launch(64, 4, 2, 168),
    ),
    "wide taylor, 128": Launches(
        Launch(64, 4, 3),
        Launch(128, 4, 3, met=32),
        Launch(128, 4, 2, met=32),
        Launch(128, 4, 2, met=32),
        Launch(128, 4, 3, met=32),
        Launch(64, 4, 2, 168),
        programs=512,
    ),
    "linear, 128": _WIDE_LINEAR,
    "elu, 128": _WIDE_LINEAR,
}
"""Measured on an H200 with bfloat16: values of 64 numbers, or of 128, as are the keys of linear and elu then."""
