"""What a search may emit, and how much of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The bounds of a search, in tokens and in token ids."""

    max_length: int
    """The most tokens a hypothesis may have, its END included; one step of the model each."""
    start: int = 1
    """The token that every hypothesis begins with."""
    end: int = 2
    """The token that finishes a hypothesis."""
    forbidden: tuple[int, ...] = (0, 1)
    """Tokens that are never emitted: padding and START."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        for name, ids in (("start", (self.start,)), ("end", (self.end,)), ("forbidden", self.forbidden)):
            if min(ids, default=0) < 0:
                raise ValueError(f"{name} must be a token id of 0 or more, got {min(ids)}")
        if self.end in self.forbidden:
            raise ValueError(f"end={self.end} is in forbidden={self.forbidden}; nothing could ever finish")
