"""The task `pairs`: anybody's file of strings and what they map to."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from qkv.data import Pair, Vocabulary, in_standard_test, part_of, read_pairs
from qkv.data.corpora.standard_test import headword
from qkv.draw.text import shorten
from qkv.models import Recurrent
from qkv.registry import unknown_name_error
from qkv.runs.load import read_config
from qkv.storage import QkvError, open_file
from qkv.tasks.base import Task, Preset, register
from qkv.tasks.distillation import label, taught, teachers_of
from qkv.tasks.options import read_options
from qkv.tasks.seq2seq import Search, Strings, evaluate, hold_out, make_objective
from qkv.train import Run, Settings, Objective

LEGIBLE = 32
"""Characters of a source that an error shows."""


def quick() -> Preset:
    """A small Transformer for four minutes on two cores."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 128,
            "heads": 4,
            "hidden_dim": 256,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "dropout": 0.0,
            "positions": "rope",
            "convolution": 5,
            "max_length": 64,
        },
        {"minutes": 4.0, "learning_rate": 3e-3, "ema_decay": 0.998, "label_smoothing": 0.1, "validate_every": 1000},
    )


def recurrent() -> Preset:
    """An LSTM with additive attention, for as long."""
    return Preset(
        "recurrent",
        {"dim": 192, "dropout": 0.0, "max_length": 64},
        {"minutes": 4.0, "learning_rate": 3e-3, "ema_decay": 0.998, "label_smoothing": 0.1, "validate_every": 1000},
    )


def large() -> Preset:
    """A Transformer of 7 million parameters: seven minutes of a GPU, with --graphs."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 256,
            "encoder_layers": 6,
            "decoder_layers": 2,
            "dropout": 0.25,
            "attention": "softmax(dropout=0.125)",
            "cross": "softmax(dropout=0.125)",
            "positions": "rope",
            "convolution": 3,
            "max_length": 64,
        },
        {
            "steps": 24000,
            "batch_size": 1024,
            "learning_rate": 1.5e-3,
            "warmup": 1000,
            "weight_decay": 0.05,
            "ema_decay": 0.999,
            "label_smoothing": 0.1,
            "validate_every": 2000,
        },
    )


def pupil() -> Preset:
    """A Transformer of 2 million parameters that writes fast, by one layer: what larger ones teach."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 192,
            "heads": 4,
            "hidden_dim": 384,
            "encoder_layers": 6,
            "decoder_layers": 1,
            "dropout": 0.05,
            "positions": "rope",
            "max_length": 64,
        },
        {
            "steps": 30000,
            "batch_size": 1024,
            "learning_rate": 2e-3,
            "warmup": 1000,
            "ema_decay": 0.999,
            "validate_every": 1000,
        },
    )


@dataclass(frozen=True)
class Seq2SeqOptions:
    """Where the pairs come from, and who else teaches."""

    train_file: str | None = None
    """TSV: source, then one or more targets."""
    test_file: str | None = None
    """The same, to evaluate on."""
    source: str = "characters"
    """How sources are cut: characters or words."""
    target: str = "words"
    """How targets are cut: characters or words."""
    held_out: int = 2670
    """Training sources kept apart to choose on; at most a tenth, and one of few. 0: one that is trained on, too."""
    strict: bool = False
    """Whether a bad line is an error instead of a count."""
    exclude: str = ""
    """Words kept out of training and choosing, in any case: `standard` (the 12,000 words of the standard CMUdict test
    list), `held_out` (the test part of our own division), or both with a comma."""
    teachers: str = ""
    """Run folders, separated by commas, whose beliefs are learned as well as the targets."""
    trust: float = 0.7
    """The share of the loss that the teachers' beliefs have."""
    unlabeled: str | None = None
    """A file of sources, one a line, whose targets are what the teachers say."""

    def __post_init__(self) -> None:
        if not 0 <= self.trust <= 1:
            raise ValueError(f"trust must be from 0 (the targets alone) to 1 (the teachers alone), got {self.trust}")
        if self.unlabeled is not None and not self.teachers:
            raise ValueError(f"unlabeled={self.unlabeled!r} needs teachers, run folders that say its sources")
        if self.held_out < 0:
            raise ValueError(f"held_out must be 0 or more, got {self.held_out}")


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """Pairs of strings."""

    strings: Strings
    settings: Seq2SeqOptions
    bad_lines: tuple[str, ...] = ()
    """What was wrong with lines that were left out."""

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "quick": quick,
        "recurrent": recurrent,
        "large": large,
        "pupil": pupil,
    }

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Seq2SeqTask":
        """Vocabularies without data; `with_test` can add some to evaluate on."""
        sources, targets = (Vocabulary.from_record(vocabulary[side]) for side in ("sources", "targets"))
        return cls(Strings({}, sources, targets), read_options(Seq2SeqOptions, options))

    def with_data(self) -> "Seq2SeqTask":
        """The same job, its vocabularies too, with the pairs that its options name."""
        loaded = type(self).load(self.options)
        assert isinstance(loaded, Seq2SeqTask)
        return replace(self, strings=replace(self.strings, parts=loaded.strings.parts), bad_lines=loaded.bad_lines)

    def with_test(self, pairs: Sequence[Pair]) -> "Seq2SeqTask":
        """The same job with these pairs as its test part."""
        strings = Strings({**self.strings.parts, "test": list(pairs)}, self.strings.sources, self.strings.targets)
        return type(self)(strings, self.settings, self.bad_lines)

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Both sides."""
        return {"sources": self.strings.sources.to_record(), "targets": self.strings.targets.to_record()}

    def sizes(self) -> tuple[int, ...]:
        """Sources, then targets."""
        return len(self.strings.sources), len(self.strings.targets)

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Fit the training part, and what teachers believe of it if there are any."""
        own = self.settings
        if not own.teachers:
            return make_objective(model, self.strings, settings)
        teachers = teachers_of(own.teachers, self)
        train = [*self.strings.parts["train"], *label(teachers, self.strings, self._unlabeled())]
        strings = replace(self.strings, parts={**self.strings.parts, "train": train})
        return taught(strings, teachers, own.trust)(model, settings)

    def validate_model(self, model: nn.Module) -> None:
        """Teachers and their words must be there, and every pair must fit into the model."""
        for name in self.settings.teachers.split(",") if self.settings.teachers else ():
            read_config(Run(Path(name.strip())))
        if self.settings.unlabeled is not None:
            open_file(Path(self.settings.unlabeled)).close()
        self._require_room(model)

    def _require_room(self, model: nn.Module) -> None:
        """Refuse pairs that are longer than the model takes, which only their batch would find out."""
        longest = getattr(getattr(model, "config", None), "max_length", None)
        if longest is None:
            return
        reads_any = isinstance(model, Recurrent)
        lengths = [
            (_length(pair, reads_any), part, pair) for part, pairs in self.strings.parts.items() for pair in pairs
        ]
        length, part, pair = max(lengths, key=itemgetter(0), default=(0, "", None))
        if pair is not None and length > longest:
            file = self.settings.test_file if part == "test" else self.settings.train_file
            source = shorten(("" if self.settings.source == "characters" else " ").join(pair.source), LEGIBLE)
            raise ValueError(
                f"the pair of {source!r} in {file or f'the {part} part'} needs {length} tokens, which exceeds "
                f"model.max_length={longest}: leave it out, or --set model.max_length={length}"
            )

    def _unlabeled(self) -> list[tuple[str, ...]]:
        """Sources that have no targets: new ones, that may be trained on."""
        if self.settings.unlabeled is None:
            return []
        with open_file(Path(self.settings.unlabeled)) as file:
            lines = file.read().decode("utf-8", "replace").splitlines()
        split = tuple if self.settings.source == "characters" else str.split
        given = dict.fromkeys(tuple(split(line.strip())) for line in lines if line.strip())
        known = {pair.source for part in self.strings.parts.values() for pair in part}
        new = [Pair(source, ()) for source in given if source not in known]
        return [pair.source for pair in leave_out(new, self.settings.exclude)]

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Error rates and similarities."""
        if not self.strings.parts.get(split):
            raise QkvError(f"there are no {split} pairs; give a file with --test-file")
        return evaluate(model, self.strings, split, Search(**search))


@register("pairs")
class PairsTask(Seq2SeqTask):
    """Map strings to strings: any TSV file of sources and targets."""

    @classmethod
    def load(cls, options: dict[str, Any]) -> "PairsTask":
        """Read the files."""
        given = read_options(Seq2SeqOptions, options)
        if given.train_file is None:
            raise QkvError("the task pairs needs a file to train on: --train-file FILE.tsv")
        strings, bad_lines = read_parts(given)
        return cls(strings, given, bad_lines)


def _length(pair: Pair, reads_any: bool) -> int:
    """Tokens that a model must take for this pair: its source, if there is a limit, and its targets with END."""
    written = 1 + max(map(len, pair.targets), default=0)
    return written if reads_any else max(len(pair.source), written)


def read_parts(given: Seq2SeqOptions) -> tuple[Strings, tuple[str, ...]]:
    """The three parts of a training file and, if there is one, a test file; and a line about each bad line."""
    assert given.train_file is not None
    train, bad = _read(given.train_file, given)
    train = leave_out(train, given.exclude)
    fit, valid = hold_out(train, min(given.held_out, max(len(train) // 10, int(len(train) > 1))))
    parts = {"train": fit, "valid": valid or fit[:1]}
    if given.test_file is not None:
        parts["test"], more = _read(given.test_file, given)
        bad += more
    return Strings.build(parts), bad


def leave_out(pairs: list[Pair], exclude: str) -> list[Pair]:
    """The pairs whose sources are in none of the named lists."""
    names = [name.strip() for name in exclude.split(",") if name.strip()]
    for name in names:
        if name not in _EXCLUDED:
            raise unknown_name_error("list of words to exclude", name, _EXCLUDED)
    tests = [_EXCLUDED[name] for name in names]
    return [pair for pair in pairs if not any(test("".join(pair.source)) for test in tests)]


_EXCLUDED: dict[str, Callable[[str], bool]] = {
    "standard": in_standard_test,
    "held_out": lambda word: part_of(headword(word)) == "test",
}


def _read(path: str, given: Seq2SeqOptions) -> tuple[list[Pair], tuple[str, ...]]:
    found = read_pairs(Path(path), source=given.source, target=given.target, strict=given.strict)
    return list(found.pairs), tuple(f"{path}:{line.number}: {line.reason}" for line in found.bad)
