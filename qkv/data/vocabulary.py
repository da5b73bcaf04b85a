"""Map between tokens and ids."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Vocabulary:
    """Token ids: 0 to 3 are pad, start, end and unknown; tokens[i] has id 4 + i."""

    PAD: ClassVar[int] = 0
    START: ClassVar[int] = 1
    END: ClassVar[int] = 2
    UNKNOWN: ClassVar[int] = 3
    SPECIAL: ClassVar[tuple[str, ...]] = ("<pad>", "<start>", "<end>", "<unknown>")
    """Display names of the ids 0 to 3; the same words in a text are ordinary tokens."""

    tokens: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, tuple):
            raise TypeError(f"tokens must be a tuple of strings, got a {type(self.tokens).__name__}")
        ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if not isinstance(token, str) or not token:
                raise ValueError(f"tokens[{index}] must be a non-empty string, got {token!r}")
            if token in ids:
                raise ValueError(f"tokens[{index}] repeats tokens[{ids[token] - 4}]: {token!r}")
            ids[token] = 4 + index
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(cls, sequences: Iterable[Iterable[str]]) -> "Vocabulary":
        """Build the vocabulary of these sequences: each token once, sorted, so their order does not matter."""
        return cls(tuple(sorted({token for sequence in sequences for token in sequence})))

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token, UNKNOWN for missing ones; START and END are not added."""
        return [self._ids.get(token, self.UNKNOWN) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens up to END, without PAD and START; UNKNOWN becomes <unknown>."""
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
        """Return plain data for a JSON file; the special ids are implied."""
        return {"tokens": list(self.tokens)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Vocabulary":
        """Build the vocabulary that `to_record` returned."""
        tokens = record.get("tokens")
        if not isinstance(tokens, list):
            raise ValueError(f"a vocabulary record must have a list of tokens, got {tokens!r}")
        return cls(tuple(tokens))
