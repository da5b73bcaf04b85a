"""Files of pairs for the sequence-to-sequence tasks: options, splits, words that are kept out."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from qkv.data import (
    Pair,
    SubwordVocabulary,
    Vocabulary,
    cmudict_split,
    is_cmudict_test_word,
    read_pairs,
    subword_size,
    unit_of,
)
from qkv.data.corpora.cmudict_test_words import headword
from qkv.data.units import Tokens
from qkv.errors import unknown_name_error
from qkv.inference.text_input import Units
from qkv.tasks.seq2seq import Seq2SeqData, hold_out

_HEADER = {"auto": None, "true": True, "false": False}


@dataclass(frozen=True)
class Seq2SeqOptions:
    """Files of pairs, how they are split into tokens, and teachers."""

    train_file: str | None = None
    """TSV: source, then one or more targets."""
    test_file: str | None = None
    """TSV file to evaluate on."""
    source: str = "characters"
    """Unit of sources: characters, words, or subwords such as bpe:8000."""
    target: str = "words"
    """Unit of targets: characters, words, or subwords such as bpe:8000."""
    shared: bool = False
    """Whether sources and targets have one vocabulary; both must be subwords of one size."""
    held_out: int = 2670
    """Training sources held out for validation, at most a tenth; 0: validate on a training pair."""
    strict: bool = False
    """Whether a bad line is an error instead of a count."""
    header: str = "auto"
    """Whether the first line names the columns: true, false or auto (if it does so, as source TAB target does)."""
    exclude: str = ""
    """Words kept out of training and validation, in any case: `standard` (the 12,000 words of the standard CMUdict
    test list), `held_out` (our own test split), or both with a comma."""
    teachers: str = ""
    """Run folders, separated by commas; the model also learns their probabilities (distillation)."""
    trust: float = 0.7
    """Weight of the teachers' probabilities in the loss."""
    unlabeled: str | None = None
    """File of sources, one per line, to train on with the teachers' predictions as targets."""

    def __post_init__(self) -> None:
        if str(self.header).lower() not in _HEADER:
            raise unknown_name_error("header", self.header, _HEADER)
        if not 0 <= self.trust <= 1:
            raise ValueError(f"trust must be from 0 (targets only) to 1 (teachers only), got {self.trust}")
        if self.unlabeled is not None and not self.teachers:
            raise ValueError(f"unlabeled={self.unlabeled!r} needs teachers, run folders that predict its targets")
        for side, unit in (("source", self.source), ("target", self.target)):
            _require_unit(side, unit)
        if self.shared and (self.source != self.target or subword_size(self.source) is None):
            raise ValueError(
                f"shared needs subwords of one size on both sides, such as bpe:8000, got source={self.source!r} and "
                f"target={self.target!r}"
            )
        if self.held_out < 0:
            raise ValueError(f"held_out must be 0 or more, got {self.held_out}")


def _require_unit(side: str, unit: str) -> None:
    """Raise for an unknown unit, with the name of the side."""
    try:
        subword_size(unit)
    except ValueError as error:
        raise ValueError(f"data.{side}: {error}") from None


def reading_unit(unit: str) -> str:
    """Return the unit in which a file is read: subwords are read as characters, since their tokenizer comes later."""
    return unit if subword_size(unit) is None else "characters"


def read_splits(given: Seq2SeqOptions) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
    """Read a training file and, if there is one, a test file; return the splits and a line about each bad line."""
    assert given.train_file is not None
    pairs, bad = read_file(given.train_file, given)
    pairs = exclude_words(pairs, given.exclude)
    train, valid = hold_out(pairs, min(given.held_out, max(len(pairs) // 10, int(len(pairs) > 1))))
    splits = {"train": train, "valid": valid or train[:1]}
    if given.test_file is not None:
        splits["test"], more = read_file(given.test_file, given)
        bad += more
    return splits, bad


def build_data(splits: dict[str, list[Pair]], given: Seq2SeqOptions) -> Seq2SeqData:
    """Build the vocabularies of the training split, subwords too, and split all pairs into tokens."""
    sizes = subword_size(given.source), subword_size(given.target)
    plain = Seq2SeqData.build(splits)
    texts = (
        ["".join(pair.source) for pair in splits["train"]],
        ["".join(target) for pair in splits["train"] for target in pair.targets],
    )
    if given.shared and sizes[0] is not None:
        sources: Vocabulary = SubwordVocabulary.train([*texts[0], *texts[1]], sizes[0])
        targets: Vocabulary = sources
    else:
        sources = plain.sources if sizes[0] is None else SubwordVocabulary.train(texts[0], sizes[0])
        targets = plain.targets if sizes[1] is None else SubwordVocabulary.train(texts[1], sizes[1])
    units = Units(unit_of(given.source, sources), unit_of(given.target, targets))
    return Seq2SeqData({name: split_pairs(pairs, given, units) for name, pairs in splits.items()}, sources, targets)


def split_pairs(pairs: list[Pair], given: Seq2SeqOptions, units: Units) -> list[Pair]:
    """Return pairs that were read as characters in the subwords of each side that has them."""
    sources: list[Tokens] = [pair.source for pair in pairs]
    targets = [target for pair in pairs for target in pair.targets]
    if subword_size(given.source) is not None:
        sources = units.source.split_all(["".join(source) for source in sources])
    if subword_size(given.target) is not None:
        targets = units.target.split_all(["".join(target) for target in targets])
    rest = iter(targets)
    return [Pair(source, tuple(islice(rest, len(pair.targets)))) for source, pair in zip(sources, pairs, strict=True)]


def exclude_words(pairs: list[Pair], exclude: str) -> list[Pair]:
    """Return the pairs whose sources are in none of the named word lists."""
    names = [name.strip() for name in exclude.split(",") if name.strip()]
    for name in names:
        if name not in _WORD_LISTS:
            raise unknown_name_error("list of words to exclude", name, _WORD_LISTS)
    tests = [_WORD_LISTS[name] for name in names]
    return [pair for pair in pairs if not any(test("".join(pair.source)) for test in tests)]


_WORD_LISTS: dict[str, Callable[[str], bool]] = {
    "standard": is_cmudict_test_word,
    "held_out": lambda word: cmudict_split(headword(word)) == "test",
}


def read_file(path: str, given: Seq2SeqOptions) -> tuple[list[Pair], tuple[str, ...]]:
    """Read a TSV file; return its pairs and a line about each bad line; subwords are read as characters."""
    header = _HEADER[str(given.header).lower()]
    source, target = (reading_unit(unit) for unit in (given.source, given.target))
    found = read_pairs(Path(path), source=source, target=target, strict=given.strict, header=header)
    skipped = [f"{path}:{line.number}: {line.reason}" for line in found.bad_lines]
    if found.header:
        skipped.insert(0, f"{path}:1: the header {', '.join(found.header)} (--set data.header=false makes it a pair)")
    return list(found.pairs), tuple(skipped)
