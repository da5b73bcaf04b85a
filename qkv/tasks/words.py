"""The task `words`: word vectors by negative sampling (word2vec)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from qkv.data import (
    Documents,
    ShuffledBatches,
    SkipGramBatch,
    SkipGramSampler,
    Vectors,
    WordCounts,
    read_corpus,
    split_paragraphs,
)
from qkv.draw import Example, ReportAnswer, TrainingReport
from qkv.errors import QkvError, unknown_name_error
from qkv.inference.progress import track
from qkv.models import WordVectors
from qkv.tasks.base import ModelSizes, Preset, RunSummary, Task, register
from qkv.tasks.options import read_options, read_text_options
from qkv.tasks.text import read_test_text
from qkv.train import Objective, Settings, linear_schedule
from qkv.train.settings import require_no_optimizer_settings

EVAL_BLOCKS = 100
"""Maximum number of blocks of a held-out split to evaluate."""
EVAL_BATCH_SIZE = 10
"""Blocks per evaluated batch."""
WIKITEXT_WORDS = 20_866
"""Words that occur `WordOptions.least` times or more in the training split of WikiText-2, which never changes."""
SHOWN_WORDS = 20
"""Words whose neighbors the report shows."""
NEIGHBORS = 5
SKIPPED_WORDS = 100
"""The report skips this many of the most frequent words."""

_TRAINING = {"learning_rate": 0.025, "batch_size": 10, "warmup": 0}


def small() -> Preset:
    """Return skip-gram vectors of Python's documentation: half a minute."""
    return Preset("word_vectors", {}, {**_TRAINING, "steps": 300, "validate_every": 100})


def wikitext() -> Preset:
    """Return skip-gram vectors of WikiText-2, five epochs: about half a minute."""
    return Preset("word_vectors", {}, {**_TRAINING, "steps": 838, "validate_every": 419}, {"source": "wikitext"})


def cbow() -> Preset:
    """Return CBOW vectors of WikiText-2: each word from the mean of its neighbors."""
    return Preset(
        "word_vectors",
        {"objective": "cbow"},
        {**_TRAINING, "steps": 838, "validate_every": 419},
        {"source": "wikitext"},
    )


@dataclass(frozen=True)
class WordOptions:
    """Text, and the options of word2vec with its defaults."""

    source: str = "python"
    """python, wikitext, a folder of .txt files, or one file."""
    least: int = 5
    """Minimum count of a word; rarer words are dropped."""
    window: int = 5
    """Largest window on each side; its size is drawn per word."""
    threshold: float = 1e-3
    """Subsampling threshold: words with a larger share are dropped at random; 0: never."""

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"least must be at least 1, got {self.least}")


@register("words")
@dataclass(frozen=True)
class WordsTask(Task):
    """Learn a vector for every word of a text from its neighbors."""

    settings: WordOptions
    counts: WordCounts
    splits: dict[str, SkipGramSampler]

    unit = "pairs"
    own_update = True
    data_options = WordOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "wikitext": wikitext, "cbow": cbow}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "WordsTask":
        """Count the words of the training split, then encode every split."""
        given = read_text_options(WordOptions, options)
        texts = read_corpus(given.source)
        try:
            counts = WordCounts.build(split_paragraphs(texts["train"]), given.least)
        except ValueError as error:
            raise QkvError(str(error), given.source) from error
        return cls(given, counts, {name: _make_sampler(text, counts, given) for name, text in texts.items()})

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "WordsTask":
        """Encode the text with the words of another run; other words are dropped."""
        given, counts = read_text_options(WordOptions, options), WordCounts.from_record(vocabulary)
        return cls(given, counts, {n: _make_sampler(t, counts, given) for n, t in read_corpus(given.source).items()})

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the vocabulary size of WikiText-2, a constant; for other texts return None."""
        given = read_text_options(WordOptions, options)
        if (given.source, given.least) != ("wikitext", WordOptions.least):
            return None
        note = f"{WIKITEXT_WORDS:,} words that occur {given.least} times or more in WikiText-2; it was not read"
        return ModelSizes((WIKITEXT_WORDS,), note=note)

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "WordsTask":
        """Build the word list without the text."""
        return cls(read_options(WordOptions, options), WordCounts.from_record(vocabulary), {})

    def with_data(self) -> "WordsTask":
        """Return this task with the text that its options name."""
        loaded = WordsTask.load(self.options)
        if loaded.counts != self.counts:
            raise QkvError(
                f"the text has changed since training: {len(self.counts):,} words were learned, "
                f"it has {len(loaded.counts):,} now",
                self.settings.source,
            )
        return loaded

    def with_test_file(self, path: str) -> "WordsTask":
        """Return this task with this text as its only split."""
        sampler = _make_sampler(read_test_text(path), self.counts, replace(self.settings, source=path))
        return replace(self, splits={"test": sampler})

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Return the words and their counts."""
        return self.counts.to_record()

    def sizes(self) -> tuple[int, ...]:
        """Return the number of words."""
        return (len(self.counts),)

    def validate_model(self, model: nn.Module) -> None:
        """Raise unless the model is of the family word_vectors."""
        _word_vectors(model)

    def validate_settings(self, settings: Settings) -> None:
        """Raise for optimizer settings: word2vec updates its tables itself."""
        require_no_optimizer_settings(settings)

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Run plain SGD with a linear learning-rate schedule; an example is a block of the text."""
        self.validate_settings(settings)
        self.validate_model(model)
        train = self.splits["train"]
        batches = ShuffledBatches(train.block_count, settings.batch_size, settings.seed)
        return Objective(
            model=model,
            order=batches.visit_ids,
            collate=lambda ids: train.draw(ids, settings.seed),
            count=lambda tensors: _word_vectors(model).count(SkipGramBatch(*tensors)),
            loss=lambda model, tensors: _word_vectors(model).loss(SkipGramBatch(*tensors)),
            validate=lambda model, may_stop: self._mean_loss(model, "valid", may_stop),
            update=lambda model, tensors, rate: _word_vectors(model).update(SkipGramBatch(*tensors), rate),
            schedule=linear_schedule,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the loss per neighbor (CBOW: per word) of a split."""
        if split not in self.splits:
            raise unknown_name_error("split", split, self.splits)
        return {"words": len(self.counts), "loss": self._mean_loss(model, split, lambda: None)}

    def report(self, model: nn.Module, summary: RunSummary) -> TrainingReport:
        """Return the report with the nearest neighbors of frequent words."""
        vectors = self.vectors(model)
        examples = [
            Example(
                word,
                [ReportAnswer(f"{one.word} ({one.cosine:.2f})", None) for one in vectors.nearest(word, NEIGHBORS)],
                [],
            )
            for word in _content_words(self.counts.words)
        ]
        return replace(
            super().report(model, summary),
            examples=examples,
            examples_title="Nearest neighbors",
            examples_note="Neighbors of frequent words, with their cosine similarity.",
        )

    def vectors(self, model: nn.Module, representation: str = "center") -> Vectors:
        """Return the vectors by word."""
        return Vectors(self.counts.words, _word_vectors(model).vectors(representation).cpu())

    @torch.no_grad()
    def _mean_loss(self, model: nn.Module, split: str, may_stop: Callable[[], None]) -> float:
        """Return the mean loss, always with the same negative samples."""
        sampler, total, count = self.splits[split], 0.0, 0
        for start in track(range(0, min(sampler.block_count, EVAL_BLOCKS), EVAL_BATCH_SIZE)):
            may_stop()
            batch = sampler.draw(range(start, min(start + EVAL_BATCH_SIZE, sampler.block_count)), seed=0)
            total += float(_word_vectors(model).loss(batch))
            count += _word_vectors(model).count(batch)
        return total / max(count, 1)


def _content_words(words: Sequence[str]) -> list[str]:
    """Return frequent words that mean something: long ones, after the most frequent, which are mostly grammar."""
    rest = words[SKIPPED_WORDS:] if len(words) > 2 * SKIPPED_WORDS else words
    return [word for word in rest if word.isalpha() and len(word) > 3][:SHOWN_WORDS]


def _make_sampler(text: Documents, counts: WordCounts, given: WordOptions) -> SkipGramSampler:
    try:
        return SkipGramSampler(split_paragraphs(text), counts, window=given.window, threshold=given.threshold)
    except ValueError as error:
        raise QkvError(str(error), given.source) from error


def _word_vectors(model: nn.Module) -> WordVectors:
    if not isinstance(model, WordVectors):
        raise TypeError(f"the task words needs a model of the family word_vectors, got a {type(model).__name__}")
    return model
