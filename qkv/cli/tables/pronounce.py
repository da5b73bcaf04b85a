"""`qkv eval` of a pronouncer: words wrong with their interval, phones wrong, words a second, of the model alone."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.modeling.pronounce import NAME
from qkv.cli.shared.console import console, print_json

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.pronunciation import Figures, Network


def is_pronouncer(run: Path) -> bool:
    """Whether this names the bundled model or a run of task pronounce."""
    from qkv import tasks
    from qkv.runs.huggingface import model_type
    from qkv.train import Run

    if str(run) == NAME:
        return True
    return model_type(run) is None and tasks.read_config(Run(run)).task == NAME


@dataclass(frozen=True)
class Asked:
    """What is asked of a pronouncer that is measured."""

    search: str | None
    beams: int
    length_power: float
    stress: bool
    best: int
    joint: str | None
    """A file, `none`, or None: the run's own if there is one."""

    def open(self, folders: Sequence[Path]) -> "Network":
        """The network of these folders with its joint model."""
        from qkv.pronunciation import Network

        return Network.open(*folders, joint=self.joint is None if self.joint in (None, "none") else Path(self.joint))

    def width(self, network: "Network") -> int:
        """Of the beam, 1 is greedy; unless told otherwise, a beam where a joint model puts its answers in order."""
        from qkv.pronunciation.measure import width

        wide = self.search == "beam" or (self.search is None and network.advised)
        return width(self.beams if wide else 1, self.best, stress=self.stress)


def print_measured(
    runs: Sequence[Path], split: str, test_file: str | None, device: str, asked: Asked, as_json: bool
) -> None:
    """Measure a run, or several as one, on a part of the first one's own data or on a file, and print."""
    from qkv import tasks
    from qkv.pronunciation import measure
    from qkv.pronunciation.bundled import run_folder
    from qkv.runs.data_hash import require_judgeable
    from qkv.train import Run

    folders = [run_folder(run) for run in runs]
    config, network = tasks.read_config(Run(folders[0])), asked.open(folders)
    network.model.to(device)
    if test_file is None:
        require_judgeable(folders)
        pairs = _part(tasks.tasks[config.task].load(config.data), split)
    else:
        pairs = read_good_pairs(test_file)
    _warn_of_stress(network, pairs, asked.stress)
    options: dict[str, Any] = {
        "beams": asked.width(network), "length_power": asked.length_power, "stress": asked.stress, "best": asked.best
    }  # fmt: skip
    figures = measure(network, pairs, **options)
    if options["beams"] > 1 and network.joint is not None:
        options["joint"] = network.joint.weight
    of = {"run": ",".join(map(str, runs)), "split": test_file or split, "seed": config.train.seed}
    if as_json:
        print_json({**asdict(figures), **options, **of})
    else:
        console().print(_sentence(figures, options, config.train.seed), soft_wrap=True, markup=False)


def read_good_pairs(path: str, **sides: Any) -> "Sequence[Pair]":
    """The pairs of a file, whose `sides` are cut as `read_pairs` does; lines that are none are told on stderr."""
    from qkv.data import read_pairs

    found = read_pairs(path, **sides)
    for line in found.bad[:5]:
        sys.stderr.write(f"qkv: left out: {path}:{line.number}: {line.reason}\n")
    if len(found.bad) > 5:
        sys.stderr.write(f"qkv: {len(found.bad):,} bad lines in all\n")
    return found.pairs


def _part(job: Any, split: str) -> "Sequence[Pair]":
    from qkv.storage import QkvError

    if not job.strings.parts.get(split):
        raise QkvError(f"there are no {split} pairs; give a file with --test-file")
    return job.strings.parts[split]


def _warn_of_stress(network: "Network", pairs: "Sequence[Pair]", stress: bool) -> None:
    """A model that writes stress is wrong on every word of a list that has none."""
    written = any(token[-1].isdigit() for token in network.job.strings.targets.tokens)
    given = any(phone[-1].isdigit() for pair in pairs for target in pair.targets for phone in target)
    if stress and written != given:
        one, other = (
            ("model writes stress", "references have none")
            if written
            else ("references have stress", "model writes none")
        )
        sys.stderr.write(f"qkv: the {one} and the {other}, so hardly a word can be right; give --no-stress\n")


def _sentence(figures: "Figures", options: dict[str, Any], seed: int) -> str:
    best = options["best"]
    among = f", right one not among the first {best}: {figures.missing:.2%}" if best > 1 else ""
    refused = f", {figures.refused} words could not be taken and count as wrong" if figures.refused else ""
    return (
        f"{figures.words:,} words, model alone, {'with' if options['stress'] else 'no'} stress, closest reference, "
        f"{'greedy' if options['beams'] == 1 else 'beam ' + str(options['beams'])}"
        f"{' and joint model' if 'joint' in options else ''}, trained with seed {seed}\n"
        f"words wrong {figures.wer:.2%} (95 % interval {figures.wer_low:.2%} to {figures.wer_high:.2%}), "
        f"phones wrong {figures.per:.2%}, {figures.words_per_second:,.0f} words/s{among}{refused}"
    )
