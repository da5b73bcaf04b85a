"""What the later tokens of a sequence need of a part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Summary:
    """A part of a sequence, as later tokens see it: of fixed size for kinds that sum over keys, else its keys."""

    tensors: dict[str, Tensor]
    length: int
    """Tokens of the part, padding included."""
    place_axes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the tokens in each tensor that has an entry for every token."""


@dataclass(frozen=True)
class SummaryOptions:
    """Arguments of a call that change the size of a summary, beyond its `Shape`."""

    mask: bool = False
    """Whether there is a padding mask."""
    starts: bool = False
    """Whether documents start inside the sequence."""
