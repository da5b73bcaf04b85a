"""The task `words`: a vector for every word of a text, by telling its neighbors from noise."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from qkv.data import Documents, Shuffled, Vectors, Windows, WordCounts, WordWindows, paragraphs_of, read_text
from qkv.data.corpora.text import read_documents
from qkv.models import WordVectors
from qkv.storage import QkvError
from qkv.tasks.base import Task, ModelSizes, Preset, register
from qkv.tasks.options import read_options, read_text_options
from qkv.train import Settings, Objective, linear_rate
from qkv.train.settings import require_own_update

HELD_OUT = 100
"""Blocks of a held-out part that are judged, at most."""
JUDGED = 10
"""Blocks that are judged together."""
WIKITEXT_WORDS = 20_866
"""Those that the training part of WikiText-2, an archive that never changes, has `WordOptions.least` times or more."""

_TRAINING = {"learning_rate": 0.025, "batch_size": 10, "warmup": 0}


def small() -> Preset:
    """Python's documentation, which is already here: half a minute."""
    return Preset("word_vectors", {}, {**_TRAINING, "steps": 300, "validate_every": 100})


def wikitext() -> Preset:
    """WikiText-2, five times: about half a minute once it is here."""
    return Preset("word_vectors", {}, {**_TRAINING, "steps": 838, "validate_every": 419}, {"source": "wikitext"})


def cbow() -> Preset:
    """The same, each word from the mean of its neighbors."""
    return Preset(
        "word_vectors",
        {"objective": "cbow"},
        {**_TRAINING, "steps": 838, "validate_every": 419},
        {"source": "wikitext"},
    )


@dataclass(frozen=True)
class WordOptions:
    """The text and how it is read; the defaults are those of word2vec."""

    source: str = "python"
    """python, wikitext, a folder of .txt files, or one file."""
    least: int = 5
    """Rarer words are left out."""
    window: int = 5
    """Neighbors on each side; of each word so many or fewer, by chance."""
    threshold: float = 1e-3
    """Words whose share is above this are left out at times; 0: never."""


@register("words")
@dataclass(frozen=True)
class WordsTask(Task):
    """Word vectors of a text: its words with their neighbors, and noise."""

    settings: WordOptions
    counts: WordCounts
    parts: dict[str, WordWindows]

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext, "cbow": cbow}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "WordsTask":
        """Count the words of the training part, then number those of every part."""
        given = read_text_options(WordOptions, options)
        texts = read_text(given.source)
        try:
            counts = WordCounts.build(paragraphs_of(texts["train"]), given.least)
        except ValueError as error:
            raise QkvError(str(error), given.source) from error
        return cls(given, counts, {name: _windows(text, counts, given) for name, text in texts.items()})

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """How many words WikiText-2 has is known without reading it."""
        given = read_text_options(WordOptions, options)
        if (given.source, given.least) != ("wikitext", WordOptions.least):
            return None
        note = f"{WIKITEXT_WORDS:,} words, those that WikiText-2 has {given.least} times or more; it was not read"
        return ModelSizes((WIKITEXT_WORDS,), note=note)

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "WordsTask":
        """The words without the text."""
        return cls(read_options(WordOptions, options), WordCounts.from_record(vocabulary), {})

    def with_data(self) -> "WordsTask":
        """The same job with the text that its options name."""
        loaded = WordsTask.load(self.options)
        if loaded.counts != self.counts:
            raise QkvError(
                f"the text has changed since the training: {len(self.counts):,} words were learned, "
                f"{len(loaded.counts):,} are there now",
                self.settings.source,
            )
        return loaded

    def with_test(self, path: str) -> "WordsTask":
        """The same job with this text as its test part."""
        windows = _windows(read_documents(path), self.counts, replace(self.settings, source=path))
        return replace(self, parts={"test": windows})

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Words and their counts."""
        return self.counts.to_record()

    def sizes(self) -> tuple[int, ...]:
        """How many words there are."""
        return (len(self.counts),)

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Plain gradient descent whose rate falls in a line; an example is a block of the text."""
        require_own_update(settings)
        _own(model)
        train = self.parts["train"]
        batches = Shuffled(train.blocks, settings.batch_size, settings.seed)
        return Objective(
            model=model,
            order=batches.visits,
            collate=lambda ids: train.draw(ids, settings.seed),
            count=lambda tensors: _own(model).count(Windows(*tensors)),
            loss=lambda model, tensors: _own(model).loss(Windows(*tensors)),
            validate=lambda model, may_stop: self._judge(model, "valid", may_stop),
            update=lambda model, tensors, rate: _own(model).update(Windows(*tensors), rate),
            rate=linear_rate,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """The loss for a neighbor (of cbow, for a word) of a part of the text; there is nothing to search."""
        if split not in self.parts:
            raise QkvError(f"there is no part {split!r} (there are: {', '.join(self.parts)})")
        return {"words": len(self.counts), "loss": self._judge(model, split, lambda: None)}

    def vectors(self, model: nn.Module, representation: str = "center") -> Vectors:
        """The vectors by word."""
        return Vectors(self.counts.words, _own(model).vectors(representation).cpu())

    @torch.no_grad()
    def _judge(self, model: nn.Module, split: str, may_stop: Callable[[], None]) -> float:
        """The mean loss; always by the same noise."""
        part, lost, count = self.parts[split], 0.0, 0
        for start in range(0, min(part.blocks, HELD_OUT), JUDGED):
            may_stop()
            windows = part.draw(range(start, min(start + JUDGED, part.blocks)), seed=0)
            lost += float(_own(model).loss(windows))
            count += _own(model).count(windows)
        return lost / max(count, 1)


def _windows(text: Documents, counts: WordCounts, given: WordOptions) -> WordWindows:
    try:
        return WordWindows(paragraphs_of(text), counts, window=given.window, threshold=given.threshold)
    except ValueError as error:
        raise QkvError(str(error), given.source) from error


def _own(model: nn.Module) -> WordVectors:
    if not isinstance(model, WordVectors):
        raise TypeError(f"the task words needs a model of the family word_vectors, got a {type(model).__name__}")
    return model
