"""Files of pairs for the sequence-to-sequence tasks: options, splits, words that are kept out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkv.data import Pair, cmudict_split, is_cmudict_test_word, read_pairs
from qkv.data.corpora.cmudict_test_words import headword
from qkv.errors import unknown_name_error
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
    """Unit of sources: characters or words."""
    target: str = "words"
    """Unit of targets: characters or words."""
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
        if self.held_out < 0:
            raise ValueError(f"held_out must be 0 or more, got {self.held_out}")


def read_splits(given: Seq2SeqOptions) -> tuple[Seq2SeqData, tuple[str, ...]]:
    """Read a training file and, if there is one, a test file; return the splits and a line about each bad line."""
    assert given.train_file is not None
    pairs, bad = read_file(given.train_file, given)
    pairs = exclude_words(pairs, given.exclude)
    train, valid = hold_out(pairs, min(given.held_out, max(len(pairs) // 10, int(len(pairs) > 1))))
    splits = {"train": train, "valid": valid or train[:1]}
    if given.test_file is not None:
        splits["test"], more = read_file(given.test_file, given)
        bad += more
    return Seq2SeqData.build(splits), bad


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
    """Read a TSV file; return its pairs and a line about each bad line."""
    header = _HEADER[str(given.header).lower()]
    found = read_pairs(Path(path), source=given.source, target=given.target, strict=given.strict, header=header)
    skipped = [f"{path}:{line.number}: {line.reason}" for line in found.bad_lines]
    if found.header:
        skipped.insert(0, f"{path}:1: the header {', '.join(found.header)} (--set data.header=false makes it a pair)")
    return list(found.pairs), tuple(skipped)
