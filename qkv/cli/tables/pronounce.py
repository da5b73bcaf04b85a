"""`qkv eval` of a pronouncer: word and phone error rates with a confidence interval, and speed, of the model alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, print_json
from qkv.cli.shared.stdin import warn

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.pronunciation import NeuralG2P, PronunciationMetrics

MAX_BAD_LINES = 5
"""Bad lines that are printed."""


def is_pronouncer(run: Path) -> bool:
    """Return whether this names the bundled model or a run of task pronounce."""
    from qkv import runs
    from qkv.pronunciation.bundled import NAME
    from qkv.runs.huggingface import model_type
    from qkv.train import Run

    if str(run) == NAME:
        return True
    return model_type(run) is None and runs.read_config(Run(run)).task == NAME


@dataclass(frozen=True)
class PronounceEvalOptions:
    """Options for evaluating a pronouncer."""

    search: str | None
    beams: int
    length_penalty: float
    stress: bool
    best: int
    joint: str | None
    """Path of a joint n-gram model, `none`, or None: the run's own if it has one."""

    def load(self, folders: Sequence[Path]) -> "NeuralG2P":
        """Load the model of these folders with its joint n-gram model."""
        from qkv.pronunciation import NeuralG2P

        if self.joint is None or self.joint == "none":
            return NeuralG2P.open(*folders, joint=self.joint is None)
        return NeuralG2P.open(*folders, joint=Path(self.joint))

    def beam_width(self, network: "NeuralG2P") -> int:
        """Return the beam width; 1 is greedy search. The default is a beam if there is a joint model to rescore it."""
        from qkv.pronunciation.measure import required_beam_width

        is_beam = self.search == "beam" or (self.search is None and network.has_joint)
        return required_beam_width(self.beams if is_beam else 1, self.best, stress=self.stress)


def print_evaluation(
    folders: Sequence[Path], split: str, test_file: str | None, device: str, given: PronounceEvalOptions, as_json: bool
) -> None:
    """Evaluate a run, or an ensemble of several, on a split of the first one's data or on a file, and print."""
    from qkv import runs
    from qkv.cli.shared.progress import evaluation_progress
    from qkv.pronunciation import measure_pronunciation
    from qkv.pronunciation.bundled import run_folder
    from qkv.tasks import tasks
    from qkv.train import Run

    paths = [run_folder(folder) for folder in folders]
    config, network = runs.read_config(Run(paths[0])), given.load(paths)
    network.model.to(device)
    if test_file is None:
        runs.require_same_splits(paths)
        pairs = _pairs_of_split(tasks[config.task].load(config.data), split)
    else:
        pairs = read_valid_pairs(test_file)
    _warn_stress_mismatch(network, pairs, given.stress)
    options: dict[str, Any] = {
        "beams": given.beam_width(network),
        "length_penalty": given.length_penalty,
        "stress": given.stress,
        "best": given.best,
    }
    with evaluation_progress():
        metrics = measure_pronunciation(network, pairs, **options)
    if options["beams"] > 1 and network.joint is not None:
        options["joint"] = network.joint.weight
    if as_json:
        source = {"run": ",".join(map(str, folders)), "split": test_file or split, "seed": config.train.seed}
        options["length_power"] = options.pop("length_penalty")  # the key of earlier versions
        print_json({**asdict(metrics), **options, **source})
    else:
        console().print(_format_metrics(metrics, options, config.train.seed), soft_wrap=True, markup=False)


def read_valid_pairs(path: str, **units: Any) -> "Sequence[Pair]":
    """Read the pairs of a file, split by `units` as in `read_pairs`; report invalid lines on stderr."""
    from qkv.data import read_pairs

    found = read_pairs(path, **units)
    for line in found.bad_lines[:MAX_BAD_LINES]:
        warn(f"skipped: {path}:{line.number}: {line.reason}")
    if len(found.bad_lines) > MAX_BAD_LINES:
        warn(f"{len(found.bad_lines):,} bad lines in all")
    return found.pairs


def _pairs_of_split(task: Any, split: str) -> "Sequence[Pair]":
    from qkv.errors import QkvError

    if not task.data.splits.get(split):
        raise QkvError(f"there are no {split} pairs; pass a file with --test-file")
    return task.data.splits[split]


def _warn_stress_mismatch(network: "NeuralG2P", pairs: "Sequence[Pair]", stress: bool) -> None:
    """Warn if only one side has stress digits: then nearly every word counts as wrong."""
    predicted = any(token[-1].isdigit() for token in network.task.data.targets.tokens)
    expected = any(phone[-1].isdigit() for pair in pairs for target in pair.targets for phone in target)
    if not stress or predicted == expected:
        return
    sides = "model writes stress and the references have none"
    if expected:
        sides = "references have stress and the model writes none"
    warn(f"the {sides}, so nearly every word counts as wrong; pass --no-stress")


def _format_metrics(metrics: "PronunciationMetrics", options: dict[str, Any], seed: int) -> str:
    best, beams = options["best"], options["beams"]
    search = "greedy" if beams == 1 else f"beam {beams}"
    joint = " and joint model" if "joint" in options else ""
    missing = f", right one not among the first {best}: {metrics.missing:.2%}" if best > 1 else ""
    refused = f", {metrics.refused} words not supported, counted as wrong" if metrics.refused else ""
    return (
        f"{metrics.words:,} words, model alone, {'with' if options['stress'] else 'no'} stress, closest reference, "
        f"{search}{joint}, trained with seed {seed}\n"
        f"words wrong {metrics.wer:.2%} (95 % interval {metrics.wer_low:.2%} to {metrics.wer_high:.2%}), "
        f"phones wrong {metrics.per:.2%}, {metrics.words_per_second:,.0f} words/s{missing}{refused}"
    )
