"""A trained encoder with its tokenizer: it fills in [MASK], and turns sentences into vectors.

reader = Reader.load("runs/mine")
reader.fill(["the [MASK] sat"])          the likeliest tokens for each mask
reader.embed(["one text", "another"])    a vector each; their dot products are cosines
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.data import Tokenizer, pad
from qkv.models import Encoder, mean_of_tokens
from qkv.runs.load import restore
from qkv.tasks.masked import MaskedTask, require_signs

TOGETHER = 64
"""Texts that are read at once, those of like length together."""


@dataclass(frozen=True)
class Filler:
    """A token for a mask."""

    text: str
    """As the tokenizer writes it: ##s goes on with the word before."""
    probability: float
    token: int


class Reader:
    """An encoder and the tokenizer that it was trained with."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer):
        if len(tokenizer) > model.embed.num_embeddings:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} tokens and the model {model.embed.num_embeddings}: "
                "they do not belong together"
            )
        self.model = model.eval()
        self.tokenizer = require_signs(tokenizer, "")

    @classmethod
    def load(cls, run: str | Path) -> "Reader":
        """The reader of a run folder of task `masked`."""
        _, job, model = restore(Path(run))
        if not isinstance(job, MaskedTask) or not isinstance(model, Encoder):
            raise ValueError(f"{run} is a run of task {job.kind!r}; filling in and embedding need one of task 'masked'")
        return cls(model, job.tokenizer)

    @property
    def mask(self) -> str:
        """How a mask is written."""
        assert self.tokenizer.mask is not None
        return self.tokenizer.token(self.tokenizer.mask)

    def fill(self, texts: Sequence[str], best: int = 5) -> list[list[list[Filler]]]:
        """For each text and each [MASK] in it the `best` likeliest tokens, each as if the other masks stayed hidden."""
        _require_texts(texts)
        if not 1 <= best <= len(self.tokenizer):
            raise ValueError(f"best must be 1 to {len(self.tokenizer)}, the tokens that there are, got {best}")
        rows = [self._row_to_fill(text) for text in texts]
        found: dict[int, list[list[Filler]]] = {}
        for chunk, tokens, mask in self._batches(rows):
            hidden = (tokens == self.tokenizer.mask) & mask
            with torch.inference_mode():
                said = self.model.fill(self.model.read(tokens, None, mask)[hidden])
            likeliest = said.float().softmax(-1).topk(best)
            fillers = [self._fillers(*one) for one in zip(*likeliest, strict=True)]
            counts = hidden.sum(1).tolist()
            for number, count in zip(chunk, counts, strict=True):
                found[number], fillers = fillers[:count], fillers[count:]
        return [found[number] for number in range(len(texts))]

    def obstacle(self, text: str) -> str | None:
        """What is in the way of filling in this text, as a sentence: `fill` would raise it. None: nothing is."""
        try:
            _require_texts([text])
            self._row_to_fill(text)
        except ValueError as error:
            return str(error)
        return None

    def filled(self, text: str, fillers: Sequence[Filler]) -> str:
        """The text with its masks filled in, as the tokenizer writes it."""
        wanted = iter(fillers)
        ids = self.tokenizer.encode(text, special=True)
        return self.tokenizer.decode(next(wanted).token if number == self.tokenizer.mask else number for number in ids)

    def embed(self, texts: Sequence[str], *, normalize: bool = True, cut: bool = False) -> Float[Tensor, "texts dim"]:
        """The mean of the vectors of each text's tokens, [CLS] and [SEP] too, in float32; of length 1 if `normalize`.

        A text that is too long is an error, or is `cut` at its end.
        """
        _require_texts(texts)
        rows = [self._row(text, special=False, cut=cut) for text in texts]
        vectors = torch.zeros(len(texts), self.model.config.dim)
        for chunk, tokens, mask in self._batches(rows):
            with torch.inference_mode():
                vectors[chunk] = mean_of_tokens(self.model.read(tokens, None, mask), mask).float().cpu()
        return functional.normalize(vectors) if normalize else vectors

    def _row(self, text: str, *, special: bool, cut: bool) -> list[int]:
        """[CLS] text [SEP], by id."""
        own, most = self.tokenizer, self.model.config.max_length
        ids = own.encode(text, special=special)
        if len(ids) > most - 2 and not cut:
            raise ValueError(f"{_short(text)} has {len(ids) + 2} tokens with [CLS] and [SEP]; the model takes {most}")
        return [own.classify or 0, *ids[: most - 2], own.separator or 0]

    def _row_to_fill(self, text: str) -> list[int]:
        row = self._row(text, special=True, cut=False)
        if self.tokenizer.mask not in row:
            raise ValueError(f"{_short(text)} has no {self.mask} to fill in")
        return row

    def _batches(self, rows: list[list[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Numbers of rows of like length, and the rows with their mask where the model is."""
        device = self.model.embed.weight.device
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for start in range(0, len(order), TOGETHER):
            chunk = order[start : start + TOGETHER]
            tokens, mask = pad([rows[number] for number in chunk], self.tokenizer.pad)
            yield chunk, tokens.to(device), mask.to(device)

    def _fillers(self, probabilities: Tensor, ids: Tensor) -> list[Filler]:
        likeliest = zip(probabilities.tolist(), ids.tolist(), strict=True)
        return [Filler(self.tokenizer.token(number), share, number) for share, number in likeliest]


def embed(run: str | Path, texts: Sequence[str], *, normalize: bool = True, cut: bool = False) -> Tensor:
    """Sentence vectors (texts, dim) from a run folder of task `masked`: `embed("runs/mine", ["one text", "another"])`.

    To embed often, keep a `qkv.tasks.Reader`, which loads the model once.
    """
    return Reader.load(run).embed(texts, normalize=normalize, cut=cut)


def _require_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, got the text {_short(texts)}")
    for text in texts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{_short(text)} was not UTF-8 where it came from")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")
