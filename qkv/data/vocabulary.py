"""Tokens and their ids."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Vocabulary:
    """The ids 0 to 3 are pad, start, end and unknown; token number i of `tokens` has id 4 + i."""

    PAD: ClassVar[int] = 0
    START: ClassVar[int] = 1
    END: ClassVar[int] = 2
    UNKNOWN: ClassVar[int] = 3
    SPECIAL: ClassVar[tuple[str, ...]] = ("<pad>", "<start>", "<end>", "<unknown>")
    """How the first ids are written for people; as tokens of a text these words mean nothing special."""

    tokens: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, tuple):
            raise TypeError(f"tokens must be a tuple of texts, got a {type(self.tokens).__name__}")
        ids: dict[str, int] = {}
        for place, token in enumerate(self.tokens):
            if not isinstance(token, str) or not token:
                raise ValueError(f"tokens[{place}] must be a text of at least one character, got {token!r}")
            if token in ids:
                raise ValueError(f"tokens[{place}] is {token!r}, which is there already, at {ids[token] - 4}")
            ids[token] = 4 + place
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(cls, sequences: Iterable[Iterable[str]]) -> "Vocabulary":
        """The vocabulary of these sequences: each token once, sorted, so that their order does not matter."""
        return cls(tuple(sorted({token for sequence in sequences for token in sequence})))

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token, UNKNOWN for those that are not there; no START or END is added."""
        return [self._ids.get(token, self.UNKNOWN) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The tokens up to END, without PAD and START; UNKNOWN is written <unknown>."""
        tokens = []
        for number in ids:
            if not 0 <= number < len(self):
                raise ValueError(f"ids must be 0 to {len(self) - 1}, got {number}")
            if number == self.END:
                break
            if number not in (self.PAD, self.START):
                tokens.append(self.tokens[number - 4] if number != self.UNKNOWN else self.SPECIAL[number])
        return tokens

    def __len__(self) -> int:
        return 4 + len(self.tokens)

    def to_record(self) -> dict[str, Any]:
        """Plain data for a JSON file; the special ids need not be written."""
        return {"tokens": list(self.tokens)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Vocabulary":
        """The vocabulary that `to_record` described."""
        tokens = record.get("tokens")
        if not isinstance(tokens, list):
            raise ValueError(f"the record of a vocabulary must have a list of tokens, but has {tokens!r}")
        return cls(tuple(tokens))
