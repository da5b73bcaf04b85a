"""Limits of a search: maximum length and special tokens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchLimits:
    """Maximum length of a search, its start and end tokens, and the tokens it never emits."""

    max_length: int
    """Maximum tokens of a hypothesis, END included; one model step each."""
    start: int = 1
    """Token that every hypothesis starts with."""
    end: int = 2
    """Token that finishes a hypothesis."""
    forbidden: tuple[int, ...] = (0, 1)
    """Tokens that are never emitted: padding and START."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        for name, ids in (("start", (self.start,)), ("end", (self.end,)), ("forbidden", self.forbidden)):
            if min(ids, default=0) < 0:
                raise ValueError(f"{name} must be a token id of at least 0, got {min(ids)}")
        if self.end in self.forbidden:
            raise ValueError(f"end={self.end} must not be in forbidden={self.forbidden}: no hypothesis could finish")
