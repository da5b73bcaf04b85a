"""The task `translate`: sentences of one language into another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.data import Pair, SentencePair, read_parallel, split_by_components, subword_size, tatoeba
from qkv.data.corpora.tatoeba import LANGUAGES
from qkv.data.units import PLAIN
from qkv.errors import unknown_name_error
from qkv.tasks.base import ModelSizes, Preset, register
from qkv.tasks.options import read_options
from qkv.tasks.pairs import Seq2SeqTask
from qkv.tasks.seq2seq_files import Seq2SeqOptions, read_file, reading_unit
from qkv.tasks.translation import presets

MAX_HELD_OUT = 0.05
"""Largest share of one's own pairs that is held out for validation, and for the test."""


@dataclass(frozen=True)
class TranslateOptions(Seq2SeqOptions):
    """Tatoeba in a language, or files of one's own."""

    language: str = "french"
    """Language of Tatoeba beside English: french or spanish."""
    reverse: bool = False
    """Whether to translate the other way: into English, or from target_file to source_file."""
    source_file: str | None = None
    """File with a sentence per line; its translations are the lines of target_file."""
    target_file: str | None = None
    """File with the translation of each line of source_file."""
    source: str = "bpe:8000"
    """Unit of sources: characters, words, or subwords such as bpe:8000."""
    target: str = "bpe:8000"
    """Unit of targets: characters, words, or subwords such as bpe:8000."""
    shared: bool = True
    """Whether sources and targets have one vocabulary; both must be subwords of one size."""
    held_out: int = 2000
    """Pairs of one's own files held out for validation, and as many for the test, at most a twentieth each; about so
    many, since pairs that share a sentence stay together. Tatoeba has fixed splits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language not in LANGUAGES:
            raise unknown_name_error("language", self.language, LANGUAGES)
        if (self.source_file is None) != (self.target_file is None):
            raise ValueError(
                f"source_file and target_file belong together, got source_file={self.source_file!r} and "
                f"target_file={self.target_file!r}"
            )
        if self.source_file is not None and self.train_file is not None:
            raise ValueError(
                f"source_file={self.source_file!r} and train_file={self.train_file!r} both name the training data; "
                "give one of them"
            )
        if self.exclude:
            raise ValueError(f"exclude={self.exclude!r} is for lists of words, of task pronounce; leave it out")

    @property
    def own_files(self) -> bool:
        """Whether the pairs are the user's, not Tatoeba's."""
        return self.source_file is not None or self.train_file is not None


@register("translate")
class TranslateTask(Seq2SeqTask):
    """Translate sentences: Tatoeba English-French or English-Spanish, or two files of your own."""

    example = "Where are you?"
    data_options = TranslateOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": presets.small, "large": presets.large}

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the requested sizes of subwords, which Tatoeba is large enough for; for other data return None."""
        given = read_options(TranslateOptions, options)
        sizes = subword_size(given.source), subword_size(given.target)
        if given.own_files or sizes[0] is None or sizes[1] is None:
            return None
        note = f"the vocabularies have the requested sizes, {given.source} and {given.target}; no text was read"
        return ModelSizes((sizes[0], sizes[1]), note=note)

    @classmethod
    def read_pairs(cls, given: TranslateOptions) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
        """Read Tatoeba or files; no sentence of either side is in two splits, unless a test file has it."""
        found, bad = _read_sentences(given)
        if given.reverse:
            found = {name: [SentencePair(pair.target, pair.source) for pair in own] for name, own in found.items()}
        splits = {name: _group(own, given) for name, own in found.items()}
        splits["valid"] = splits["valid"] or splits["train"][:1]
        if given.test_file is not None:
            splits["test"], more = read_file(given.test_file, given)
            bad += more
        return splits, bad


def _read_sentences(given: TranslateOptions) -> tuple[dict[str, list[SentencePair]], tuple[str, ...]]:
    """Return the sentence pairs by split, and a line about each bad line."""
    if not given.own_files:
        return tatoeba(given.language), ()
    if given.source_file is not None and given.target_file is not None:
        pairs, malformed = read_parallel(given.source_file, given.target_file, strict=given.strict)
        bad = tuple(f"line {one.number}: {one.reason}" for one in malformed)
    else:
        assert given.train_file is not None
        read, bad = read_file(given.train_file, given)
        source, target = (PLAIN[reading_unit(unit)] for unit in (given.source, given.target))
        pairs = [SentencePair(source.join(one.source), target.join(text)) for one in read for text in one.targets]
    share = min(given.held_out / len(pairs), MAX_HELD_OUT)
    return split_by_components(pairs, valid=share, test=share), bad


def _group(pairs: Sequence[SentencePair], given: TranslateOptions) -> list[Pair]:
    """Return a pair per source, with all its translations."""
    source, target = (PLAIN[reading_unit(unit)] for unit in (given.source, given.target))
    found: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for pair in pairs:
        found.setdefault(source.split(pair.source), {})[target.split(pair.target)] = None
    return [Pair(one, tuple(targets)) for one, targets in found.items()]
