"""A trained encoder with its tokenizer: fill [MASK], and embed sentences.

lm = qkv.runs.load_masked_lm("runs/mine")
lm.fill(["the [MASK] sat"])          the most probable tokens for each mask
lm.embed(["one text", "another"])    one vector per text; their dot products are cosines
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.cancellation import check_canceled
from qkv.data import Tokenizer, pad
from qkv.errors import QkvError
from qkv.inference.predictor import Predictor
from qkv.models import Encoder, mean_pool

BATCH_SIZE = 64
"""Texts per forward pass, grouped by length."""


@dataclass(frozen=True)
class MaskCandidate:
    """A token for a mask."""

    text: str
    """The token as the tokenizer writes it: ##s continues the word before."""
    probability: float
    token: int


class MaskedLM:
    """An encoder and the tokenizer it was trained with."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer):
        if len(tokenizer) > model.embed.num_embeddings:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} tokens and the model {model.embed.num_embeddings} embeddings: "
                "they do not belong together"
            )
        self.model = model.eval()
        self.tokenizer = require_bert_tokens(tokenizer, "")

    @property
    def mask(self) -> str:
        """The mask token as text."""
        assert self.tokenizer.mask is not None
        return self.tokenizer.id_to_token(self.tokenizer.mask)

    def fill(self, texts: Sequence[str], best: int = 5) -> list[list[list[MaskCandidate]]]:
        """Return the `best` candidates for each [MASK] of each text; the other masks stay masked."""
        _require_texts(texts)
        self.check_best(best)
        rows = [self._row_with_mask(text) for text in texts]
        found: dict[int, list[list[MaskCandidate]]] = {}
        for batch, tokens, mask in self._batches(rows):
            masked = (tokens == self.tokenizer.mask) & mask
            with torch.inference_mode():
                logits = self.model.token_logits(self.model.encode(tokens, None, mask)[masked])
            probabilities, ids = logits.float().softmax(-1).topk(best)
            candidates = [self._candidates(*one) for one in zip(probabilities, ids, strict=True)]
            for index, count in zip(batch, masked.sum(1).tolist(), strict=True):
                found[index], candidates = candidates[:count], candidates[count:]
        return [found[index] for index in range(len(texts))]

    def check_best(self, best: int) -> None:
        """Raise ValueError if `fill` cannot return this many candidates."""
        if not 1 <= best <= len(self.tokenizer):
            raise ValueError(f"best must be 1 to {len(self.tokenizer)}, the size of the vocabulary, got {best}")

    def check(self, text: str) -> None:
        """Raise ValueError if `fill` cannot take this text."""
        _require_texts([text])
        self._row_with_mask(text)

    def filled(self, text: str, candidates: Sequence[MaskCandidate]) -> str:
        """Return the text with these tokens in place of its masks, as the tokenizer writes it."""
        chosen = iter(candidates)
        ids = self.tokenizer.encode(text, special=True)
        return self.tokenizer.decode(next(chosen).token if token == self.tokenizer.mask else token for token in ids)

    def embed(
        self, texts: Sequence[str], *, normalize: bool = True, truncate: bool = False
    ) -> Float[Tensor, "texts dim"]:
        """Return the mean of each text's token vectors, [CLS] and [SEP] included, in float32.

        `normalize`: scale to length 1. A text that is too long raises, or is truncated with `truncate`.
        """
        _require_texts(texts)
        rows = [self._row(text, special=False, truncate=truncate) for text in texts]
        vectors = torch.zeros(len(texts), self.model.config.dim)
        for batch, tokens, mask in self._batches(rows):
            with torch.inference_mode():
                vectors[batch] = mean_pool(self.model.encode(tokens, None, mask), mask).float().cpu()
        return functional.normalize(vectors) if normalize else vectors

    def _row(self, text: str, *, special: bool, truncate: bool) -> list[int]:
        """Return the ids of [CLS] text [SEP]."""
        own, longest = self.tokenizer, self.model.config.max_length
        ids = own.encode(text, special=special)
        if len(ids) > longest - 2 and not truncate:
            raise ValueError(
                f"{_short(text)} has {len(ids) + 2} tokens with [CLS] and [SEP]; the model takes {longest}"
            )
        return [own.cls or 0, *ids[: longest - 2], own.sep or 0]

    def _row_with_mask(self, text: str) -> list[int]:
        row = self._row(text, special=True, truncate=False)
        if self.tokenizer.mask not in row:
            raise ValueError(f"{_short(text)} has no {self.mask} to fill")
        return row

    def _batches(self, rows: list[list[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield (row indices, tokens, padding mask) of rows of similar length, on the model's device."""
        device = self.model.embed.weight.device
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for start in range(0, len(order), BATCH_SIZE):
            check_canceled()
            batch = order[start : start + BATCH_SIZE]
            tokens, mask = pad([rows[index] for index in batch], self.tokenizer.pad)
            yield batch, tokens.to(device), mask.to(device)

    def _candidates(self, probabilities: Tensor, ids: Tensor) -> list[MaskCandidate]:
        pairs = zip(ids.tolist(), probabilities.tolist(), strict=True)
        return [MaskCandidate(self.tokenizer.id_to_token(token), probability, token) for token, probability in pairs]


class FillMaskPredictor(Predictor):
    """Predict masked tokens; a record is {"input", "filled", "masks": [[candidate]], "error"}."""

    columns: ClassVar[tuple[str, ...]] = ("input", "mask", "answer", "probability")

    def __init__(self, lm: MaskedLM, best: int):
        lm.check_best(best)
        self.lm = lm
        self.best = best

    def check(self, text: str) -> None:
        """Raise ValueError for a text without a mask, or one that is too long."""
        self.lm.check(text)

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the candidates of each mask, and the text with the best ones in place."""
        records = []
        for text, masks in zip(texts, self.lm.fill(texts, self.best), strict=True):
            filled = self.lm.filled(text, [candidates[0] for candidates in masks])
            listed = [[{"text": one.text, "probability": one.probability} for one in masked] for masked in masks]
            records.append({"input": text, "filled": filled, "masks": listed, "error": None})
        return records

    def format(self, record: dict[str, Any]) -> str:
        """Return `text TAB mask number TAB token TAB probability` lines."""
        return "".join(
            f"{record['input']}\t{number}\t{one['text']}\t{one['probability']:.4f}\n"
            for number, candidates in enumerate(record["masks"], 1)
            for one in candidates
        )

    def rows(self, record: dict[str, Any]) -> Sequence[tuple[str, ...]]:
        """Return a row per mask and candidate."""
        found = [
            (record["input"], str(number), one["text"], f"{one['probability']:.6g}")
            for number, candidates in enumerate(record["masks"], 1)
            for one in candidates
        ]
        return found or [(record["input"], "", "", "")]

    def failed(self, text: str, error: str) -> dict[str, Any]:
        """Return a record without masks."""
        return {"input": text, "filled": None, "masks": [], "error": error}


def require_bert_tokens(tokenizer: Tokenizer, where: str) -> Tokenizer:
    """Return the tokenizer; raise if it lacks [MASK], [CLS] or [SEP]."""
    needed = {"[MASK]": tokenizer.mask, "[CLS]": tokenizer.cls, "[SEP]": tokenizer.sep}
    missing = [name for name, token in needed.items() if token is None]
    if missing:
        raise QkvError(f"the tokenizer has no {', '.join(missing)}, which the task masked needs", where)
    return tokenizer


def _require_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of strings, got the string {_short(texts)}")
    for text in texts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{_short(text)} is not valid UTF-8")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")
