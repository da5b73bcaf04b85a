"""The task `pairs`: a TSV file of sources and targets; and what it shares with `pronounce`."""

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from qkv.data import Pair, unit_of, vocabulary_from_record
from qkv.draw import Mistakes, TrainingReport
from qkv.draw.text import shorten
from qkv.errors import QkvError, QkvWarning
from qkv.inference import PredictOptions
from qkv.inference.seq2seq import Search, evaluate_pairs, predict_pairs, predict_targets
from qkv.inference.seq2seq_predictor import Seq2SeqPredictor
from qkv.inference.source_text import in_known_case
from qkv.inference.text_input import Seq2SeqInput, Units
from qkv.metrics import Answers
from qkv.models import Recurrent
from qkv.records import require_fields
from qkv.storage import open_file
from qkv.tasks import seq2seq_presets
from qkv.tasks.base import Preset, RunSummary, Sample, Task, register
from qkv.tasks.distillation import as_teachers, make_distillation_objective, pseudo_label
from qkv.tasks.options import read_options
from qkv.tasks.seq2seq import Seq2SeqBatch, Seq2SeqData, collate, encode, make_objective
from qkv.tasks.seq2seq_files import (
    Seq2SeqOptions,
    build_data,
    exclude_words,
    read_file,
    read_splits,
    split_pairs,
)
from qkv.tasks.seq2seq_report import find_mistakes, make_report, make_samples
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

SOURCE_EXCERPT = 32
"""Characters of a source that an error message shows."""
MAX_BAD_LINES = 5
"""Bad lines to print one by one; the rest are counted."""
TIMED_SOURCES = 256
"""Sources whose decoding is timed."""
MAX_UNSEEN = 8
"""Unseen tokens of a test file that are named; the rest are counted."""
LONG_RANGE = 512
"""Length in tokens below which a comparison is no evidence about long range."""


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """Map sequences to sequences."""

    data: Seq2SeqData
    settings: Seq2SeqOptions
    bad_lines: tuple[str, ...] = ()
    """Reasons why lines were skipped."""

    decodes = True
    data_options = Seq2SeqOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "quick": seq2seq_presets.quick,
        "recurrent": seq2seq_presets.recurrent,
        "large": seq2seq_presets.large,
        "pupil": seq2seq_presets.pupil,
    }

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Seq2SeqTask":
        """Build the vocabularies without data."""
        require_fields(vocabulary, {"sources": dict, "targets": dict})
        sources, targets = (vocabulary_from_record(vocabulary[side]) for side in ("sources", "targets"))
        given = read_options(cls.data_options, options)
        for name, side in ((given.source, sources), (given.target, targets)):
            unit_of(name, side)  # raises if the vocabulary has no tokenizer for it
        return cls(Seq2SeqData({}, sources, targets), given)

    @classmethod
    def load(cls, options: dict[str, Any]) -> "Seq2SeqTask":
        """Read the pairs, and build the vocabularies of the training split."""
        given = read_options(cls.data_options, options)
        splits, bad_lines = cls.read_pairs(given)
        return cls(build_data(splits, given), given, bad_lines)

    @classmethod
    def read_pairs(cls, given: Any) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
        """Read the splits that the options name, and a line about each bad line; subwords are read as characters."""
        raise NotImplementedError

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Seq2SeqTask":
        """Read the pairs with the vocabularies of another run; raise for target tokens that are not in them."""
        task = cls.restore(options, vocabulary).with_data()
        assert isinstance(task, Seq2SeqTask)
        pairs = [pair for split in ("train", "valid") for pair in task.data.splits[split]]
        written, read = set(task.data.targets.tokens), set(task.data.sources.tokens)
        unknown = sorted({token for pair in pairs for target in pair.targets for token in target} - written)
        if unknown:
            raise QkvError(
                "some target tokens are not in the vocabulary of the --start-from model, so it cannot predict them: "
                f"{len(unknown)}, such as {unknown[0]!r}"
            )
        unread = sorted({token for pair in pairs for token in pair.source} - read)
        if unread:
            names = ", ".join(map(repr, unread[:MAX_BAD_LINES]))
            warnings.warn(
                f"{names}: not in the vocabulary of the --start-from model, read as unknown", QkvWarning, stacklevel=2
            )
        return task

    def with_data(self) -> "Seq2SeqTask":
        """Return this task, its vocabularies too, with the pairs that its options name."""
        splits, bad_lines = self.read_pairs(self.settings)
        splits = {name: split_pairs(pairs, self.settings, self.units) for name, pairs in splits.items()}
        return replace(self, data=replace(self.data, splits=splits), bad_lines=bad_lines)

    def with_test_file(self, path: str) -> "Seq2SeqTask":
        """Return this task with the pairs of a TSV file as its test split."""
        pairs, bad_lines = read_file(path, replace(self.settings, strict=False))
        return replace(self.with_test_pairs(split_pairs(pairs, self.settings, self.units)), bad_lines=bad_lines)

    def with_test_pairs(self, pairs: list[Pair]) -> "Seq2SeqTask":
        """Return this task with these pairs as its test split."""
        return replace(self, data=replace(self.data, splits={**self.data.splits, "test": pairs}))

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Return the vocabularies of both sides."""
        return {"sources": self.data.sources.to_record(), "targets": self.data.targets.to_record()}

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the source and target vocabularies."""
        return len(self.data.sources), len(self.data.targets)

    def split_sizes(self) -> dict[str, int]:
        """Return the number of sources by split."""
        return {name: len(pairs) for name, pairs in self.data.splits.items()}

    @property
    def default_split(self) -> str:
        """The test split, or the validation split if there is none."""
        return "test" if self.data.splits.get("test") else "valid"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The first bad lines and their number, and targets that look unsplit."""
        lines = [f"skipped: {line}" for line in self.bad_lines[:MAX_BAD_LINES]]
        if len(self.bad_lines) > MAX_BAD_LINES:
            lines.append(f"... {len(self.bad_lines)} lines skipped in all")
        if self.settings.target == "words" and self._targets_look_unsplit():
            lines.append(
                "no target has a space, so each is one token; --set data.target=characters splits them into characters"
            )
        return (*lines, *self._unseen_tokens())

    def _unseen_tokens(self) -> list[str]:
        """Return sentences about the tokens of the test split that the model does not know."""
        pairs = self.data.splits.get("test", ())
        sources, targets = set(self.data.sources.tokens), set(self.data.targets.tokens)
        found = []
        for side, known, texts in (
            ("sources", sources, [in_known_case(pair.source, sources) for pair in pairs]),
            ("targets", targets, [target for pair in pairs for target in pair.targets]),
        ):
            unseen = Counter(token for text in texts for token in set(text) - known)
            if unseen:
                count = sum(not known.issuperset(text) for text in texts)
                shown = ", ".join(repr(token) for token, _ in unseen.most_common(MAX_UNSEEN))
                more = f" and {len(unseen) - MAX_UNSEEN} more" if len(unseen) > MAX_UNSEEN else ""
                found.append(
                    f"{count:,} of {len(texts):,} test {side} have tokens that the training data does not have: "
                    f"{shown}{more}"
                )
        return found

    def _targets_look_unsplit(self) -> bool:
        """Return whether every target is one token and most are different."""
        targets = [target for pair in self.data.splits.get("train", ()) for target in pair.targets]
        return all(len(target) == 1 for target in targets) and len(set(targets)) > len(targets) / 2

    # --- training ---

    @property
    def teacher_runs(self) -> tuple[Path, ...]:
        """Run folders of `teachers`."""
        names = self.settings.teachers.split(",") if self.settings.teachers else []
        return tuple(Path(name.strip()) for name in names)

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Fit the training split, and the teachers' probabilities if there are teachers."""
        if not self.settings.teachers:
            return make_objective(model, self.data, settings)
        if teachers is None:
            raise ValueError(f"data.teachers={self.settings.teachers!r} needs the models of these runs: pass teachers")
        ensemble = as_teachers(teachers)
        extra = pseudo_label(ensemble, self.data, self._unlabeled_sources())
        data = replace(self.data, splits={**self.data.splits, "train": [*self.data.splits["train"], *extra]})
        return make_distillation_objective(model, data, settings, ensemble, self.settings.trust)

    def validate_model(self, model: nn.Module) -> None:
        """Raise if the file of unlabeled sources is missing or a pair is too long for the model."""
        if self.settings.unlabeled is not None:
            open_file(Path(self.settings.unlabeled)).close()
        config = getattr(model, "config", None)
        if getattr(config, "tied", False) and self.data.sources != self.data.targets:
            raise ValueError(
                f"model.tied=True needs one vocabulary for both sides: --set data.shared=True, got source="
                f"{self.settings.source} and target={self.settings.target} of their own"
            )
        longest = getattr(config, "max_length", None)
        if longest is None:
            return
        any_source = isinstance(model, Recurrent)
        lengths = [
            (_needed_length(pair, any_source), split, pair)
            for split, pairs in self.data.splits.items()
            for pair in pairs
        ]
        length, split, pair = max(lengths, key=itemgetter(0), default=(0, "", None))
        if pair is not None and length > longest:
            file = self.settings.test_file if split == "test" else self.settings.train_file
            source = shorten(self.join_source(pair.source), SOURCE_EXCERPT)
            raise ValueError(
                f"the pair of {source!r} in {file or f'the {split} split'} needs {length} tokens, which exceeds "
                f"model.max_length={longest}: remove it, or --set model.max_length={length}"
            )

    def _unlabeled_sources(self) -> list[tuple[str, ...]]:
        """Read sources without targets; those that are in a split or excluded are left out."""
        if self.settings.unlabeled is None:
            return []
        with open_file(Path(self.settings.unlabeled)) as file:
            lines = file.read().decode("utf-8", "replace").splitlines()
        sources = dict.fromkeys(self.units.source.split(line.strip()) for line in lines if line.strip())
        known = {pair.source for pairs in self.data.splits.values() for pair in pairs}
        new = [Pair(source, ()) for source in sources if source not in known]
        return [pair.source for pair in exclude_words(new, self.settings.exclude)]

    # --- evaluation ---

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return error rates and similarities."""
        data = self.data
        return evaluate_pairs(model, data.existing_pairs(split), data.sources, data.targets, Search(**search))

    def answers(self, model: nn.Module, split: str, **search: Any) -> Answers:
        """Return the best target of each source."""
        pairs = self.data.existing_pairs(split)
        tokens = predict_pairs(model, pairs, self.data.sources, self.data.targets, Search(**search))
        return Answers(
            [self.join_source(pair.source) for pair in pairs],
            [self.join_target(written) for written in tokens],
            [[self.join_target(target) for target in pair.targets] for pair in pairs],
            tokens,
            [pair.targets for pair in pairs],
            self.settings.target,
        )

    def caveat(self, split: str) -> str:
        """Return the limits of the evidence: sequences are short, or the validation split is used twice."""
        pairs = self.data.splits[split]
        longest = max(len(text) for pair in pairs for text in (pair.source, *pair.targets))
        caveats = []
        if longest < LONG_RANGE:
            caveats.append(f"strings of at most {longest} tokens: short strings are no evidence about long range")
        if split == "valid":
            caveats.append("no test pairs: figures are of the held-out pairs that the rates were chosen on")
        return "; ".join(caveats)

    def samples(self, model: nn.Module) -> list[Sample]:
        """Return held-out sources with the model's answers and the attended source tokens."""
        return make_samples(self, model)

    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return sources with a wrong answer."""
        return find_mistakes(self, model, split)

    def report(self, model: nn.Module, summary: RunSummary) -> TrainingReport:
        """Return curves, error rates, sample answers and attention maps."""
        return make_report(self, model, summary)

    # --- prediction ---

    def predictor(self, model: nn.Module, options: PredictOptions) -> Seq2SeqPredictor:
        """Return a predictor of target strings."""
        options.reject_tokens(self.kind)
        return Seq2SeqPredictor(model, self.data.sources, self.data.targets, self.units, options)

    def text_input(self, model: nn.Module) -> Seq2SeqInput:
        """Return a reader of sources and targets."""
        return Seq2SeqInput(model, self.data.sources, self.data.targets, self.units, self.example)

    example: ClassVar[str | None] = None
    """A source to start with in the workbench; None: the first known tokens."""

    @property
    def units(self) -> Units:
        """Units that both sides are split into."""
        sources, targets = self.data.sources, self.data.targets
        return Units(unit_of(self.settings.source, sources), unit_of(self.settings.target, targets))

    def join_source(self, tokens: tuple[str, ...]) -> str:
        """Return a source as people write it."""
        return self.units.source.join(tokens)

    def join_target(self, tokens: tuple[str, ...] | list[str]) -> str:
        """Return a target as people write it."""
        return self.units.target.join(tokens)

    # --- cost ---

    def example_batch(self, settings: Settings) -> Seq2SeqBatch:
        """Return the validation pair of median length."""
        pairs = sorted(encode(self.data, self.data.splits["valid"]), key=lambda pair: len(pair[0]) + len(pair[1]))
        return collate([pairs[len(pairs) // 2]])

    def decoding_state(self, model: Any, batch: Tensors) -> Any:
        """Return the state after decoding the whole target."""
        if not hasattr(model, "start"):
            return None
        row = Seq2SeqBatch(*batch)
        state = model.start(row.source_ids, None)
        for token in row.decoder_input_ids.unbind(1):
            state = model.step(token, state)[1]
        return state

    def decoding_speed(self, model: nn.Module, split: str) -> float:
        """Return the tokens per second, END included, of greedy decoding."""
        sources = [pair.source for pair in self.data.splits[split][:TIMED_SOURCES]]
        started = time.perf_counter()
        found = predict_targets(model.eval(), self.data.sources, sources, Search())
        seconds = time.perf_counter() - started
        return sum(len(best[0].tokens) + best[0].finished for best in found) / seconds


@register("pairs")
class PairsTask(Seq2SeqTask):
    """Map strings to strings: any TSV file of sources and targets."""

    @classmethod
    def read_pairs(cls, given: Seq2SeqOptions) -> tuple[dict[str, list[Pair]], tuple[str, ...]]:
        """Read the files."""
        if given.train_file is None:
            raise QkvError("the task pairs needs a file to train on: --train-file FILE.tsv")
        return read_splits(given)


def _needed_length(pair: Pair, any_source: bool) -> int:
    """Return the length that a model must support: the longest target with END or, unless `any_source`, the source."""
    written = 1 + max(map(len, pair.targets), default=0)
    return written if any_source else max(len(pair.source), written)
