"""Text typed by a user as the tokens of a model, for tools that inspect the model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from qkv.data import Tokenizer, Unit, Vocabulary, pad
from qkv.decode import greedy
from qkv.inference.candidates import Candidates, next_candidates, top_candidates
from qkv.inference.seq2seq import search_limits
from qkv.inference.source_text import in_known_case, longest_source

MAX_LISTED = 8
"""Unknown tokens that a note lists."""


@dataclass(frozen=True)
class TokenSequence:
    """Tokens as people read them, with their ids."""

    tokens: list[str]
    ids: list[int]
    notes: list[str]
    """Remarks for the user, such as tokens that are unknown to the model."""


class TextInput(ABC):
    """Read text as the tokens of one model."""

    writes: ClassVar[bool] = False
    """Whether the model maps a source to a target."""
    example: str
    """A text to start with."""

    def __init__(self, model: nn.Module):
        self.model = model

    def read(self, text: str) -> TokenSequence:
        """Return the tokens of the text; raise ValueError for an empty text or one that is too long."""
        found = self.tokenize(text)
        if not found.ids:
            raise ValueError("the text is empty; type something for the model to read")
        longest = longest_source(self.model)
        if longest is not None and len(found.ids) > longest:
            raise ValueError(f"the text has {len(found.ids):,} tokens; this model takes at most {longest:,}")
        return found

    @abstractmethod
    def tokenize(self, text: str) -> TokenSequence:
        """Return the tokens of the text, whatever their number."""

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return what the model says about a text, place by place."""
        return []


class PromptInput(TextInput):
    """A prompt for a language model: the start token, then the text."""

    example = "The statement"

    def __init__(self, model: nn.Module, tokenizer: Tokenizer):
        super().__init__(model)
        self.tokenizer = tokenizer

    def tokenize(self, text: str) -> TokenSequence:
        """Return START and the tokens of the text."""
        ids = [self.tokenizer.start, *self.tokenizer.encode(text)] if text else []
        return TokenSequence([self.tokenizer.token_text(index) for index in ids], ids, [])

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return the most probable next tokens."""
        return [next_candidates(self.model, source.ids, self.tokenizer.token_text)]


class MaskedInput(TextInput):
    """A text for a BERT: [CLS] text [SEP], in which [MASK] is one token."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer):
        super().__init__(model)
        self.tokenizer = tokenizer
        self.example = f"the value of the {tokenizer.id_to_token(tokenizer.mask or 0)} is returned"

    def tokenize(self, text: str) -> TokenSequence:
        """Return [CLS], the tokens of the text and [SEP]."""
        if not text.strip():
            return TokenSequence([], [], [])
        own = self.tokenizer
        ids = [own.cls or 0, *own.encode(text, special=True), own.sep or 0]
        notes = ["some of the text is unknown to the tokenizer"] if own.unknown in ids else []
        return TokenSequence([own.token_text(index) for index in ids], ids, notes)

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return the most probable tokens for each [MASK]."""
        ids = torch.tensor([source.ids], device=next(self.model.parameters()).device)
        masked = torch.eq(ids, self.tokenizer.mask or 0)
        with torch.inference_mode():
            hidden = self.model.encode(ids, None, torch.ones_like(ids, dtype=torch.bool))  # type: ignore[operator]
            rows = self.model.token_logits(hidden[masked])  # type: ignore[operator]
        places = [f"{source.tokens[n]} ({n + 1})" for n in masked[0].nonzero().flatten().tolist()]
        return [top_candidates(*one, self.tokenizer.token_text) for one in zip(places, rows, strict=True)]


@dataclass(frozen=True)
class Units:
    """Units that the two sides of a pair are split into."""

    source: Unit
    target: Unit


class Seq2SeqInput(TextInput):
    """A source for a sequence-to-sequence model, and targets to compare with."""

    writes = True

    def __init__(self, model: Any, sources: Vocabulary, targets: Vocabulary, units: Units, example: str | None = None):
        super().__init__(model)
        self.sources, self.targets, self.units = sources, targets, units
        self.example = example or units.source.example(sources)

    def tokenize(self, text: str) -> TokenSequence:
        """Split a source into tokens; letters get the case that the vocabulary has."""
        known = set(self.sources.tokens)
        return _with_notes(in_known_case(self.units.source.split(text), known), self.sources, self.units.source)

    def read_target(self, text: str) -> TokenSequence:
        """Return the tokens of a target that a user wants to inspect."""
        found = _with_notes(self.units.target.split(text), self.targets, self.units.target)
        longest = self.model.config.max_length - 1  # type: ignore[union-attr, operator]
        if len(found.ids) > longest:
            raise ValueError(f"the answer has {len(found.ids):,} tokens; this model writes at most {longest:,}")
        return found

    def predict_target(self, source: TokenSequence) -> TokenSequence:
        """Return the target that greedy search finds."""
        with torch.inference_mode():
            rows, mask = pad([source.ids])
            (found,) = greedy(self.model, rows, mask, search_limits(self.model))  # type: ignore[arg-type]
        return TokenSequence(self.target_names(found.tokens), list(found.tokens), [])

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return the answer that greedy search finds."""
        ids = self.predict_target(source).ids
        return [Candidates("answer", [self.units.target.join(self._target_tokens(ids))], [])]

    def target_names(self, ids: Sequence[int]) -> list[str]:
        """Return each target id as people read it, the special ones too."""
        return self.units.target.labels(self._target_tokens(ids))

    def _target_tokens(self, ids: Sequence[int]) -> list[str]:
        special = len(Vocabulary.SPECIAL)
        return [Vocabulary.SPECIAL[i] if i < special else self.targets.tokens[i - special] for i in ids]


def _with_notes(tokens: Sequence[str], vocabulary: Vocabulary, unit: Unit) -> TokenSequence:
    unknown = sorted(set(tokens) - set(vocabulary.tokens))
    notes = []
    if unknown:
        listed = " ".join("\N{OPEN BOX} (a space)" if token == " " else token for token in unknown[:MAX_LISTED])
        more = f" and {len(unknown) - MAX_LISTED} more" if len(unknown) > MAX_LISTED else ""
        notes.append(f"never seen in training, read as unknown: {listed}{more}")
    return TokenSequence(unit.labels(tokens), vocabulary.encode(tokens), notes)
