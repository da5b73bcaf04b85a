"""A comparison: every contestant trained on one task, with its best learning rate, over several seeds.

    first seed, every rate -> the rate of the best held-out score -> the other seeds with it -> figures on test data

One rate for all would be no comparison: kinds differ in the rate they need more than in what they can do with it.
Each training is a run folder of its own below the comparison's, so what was finished or begun is never done again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from qkv.compare.candidates import Contestant
from qkv.compare.resources import Expense, decoding_speed, example, expense
from qkv.compare.trial import Training, choose, folder_name, learned, open_run
from qkv.draw import Axis, Bar, Series, bars, curves
from qkv.runs.load import Config, build, restore
from qkv.storage import QkvError, read_json, write_atomic, write_json
from qkv.tasks.base import Task
from qkv.tasks.pairs import Seq2SeqTask
from qkv.train import Loop, Machine, Run
from qkv.train.objective import Tensors

FACTORS = (1 / 3, 1.0, 3.0)
"""The learning rates that are tried, unless they are given: multiples of the preset's."""
_ENDS = ("low", "mean", "high")
LONG = 512
"""Tokens from which on strings may say something about long range."""


@dataclass(frozen=True)
class Standing:
    """How far a comparison is."""

    done: float
    """Trainings, the current one in parts."""
    trainings: int
    about: str


COUNTS = ("examples", "chance", "tokens", "words")
"""Figures that are the same for all contestants."""

Report = Callable[[Standing], None]


@dataclass(frozen=True)
class Rules:
    """What is the same for everybody."""

    seeds: int = 1
    """How many, from the configuration's on."""
    rates: tuple[float, ...] = ()
    """Learning rates; none: FACTORS times the contestant's own."""
    device: str = "cpu"
    graphs: bool = False
    """Whether models that can be recorded are: CUDA graphs."""
    beams: tuple[int, ...] = ()
    """Widths of beams that strings are decoded with as well: `beam_5_sequence_error_rate` beside the greedy one."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        for rate in self.rates:
            if not 0 < rate < math.inf:
                raise ValueError(f"a learning rate must be more than 0, got {rate}")

    def rates_for(self, config: Config) -> list[float]:
        """The rates to try, in order, each once."""
        own = [float(f"{factor * config.train.learning_rate:.3g}") for factor in FACTORS]
        return list(dict.fromkeys(self.rates or own))


@dataclass
class Comparison:
    """A comparison and its folder; `records` has a line for each contestant that is through."""

    job: Task
    contestants: Sequence[Contestant]
    folder: Path
    rules: Rules
    report: Report
    trainings: list[Training] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    _total: int = 0

    @property
    def split(self) -> str:
        """The part of the data that figures are of."""
        return "valid" if isinstance(self.job, Seq2SeqTask) and not self.job.strings.parts.get("test") else "test"

    @property
    def note(self) -> str:
        """What the figures are no evidence of."""
        if not isinstance(self.job, Seq2SeqTask):
            return ""
        pairs = self.job.strings.parts[self.split]
        longest = max(len(text) for pair in pairs for text in (pair.source, *pair.targets))
        short = f"strings of at most {longest} tokens: short strings are no evidence about long range"
        seen = "no test pairs: figures are of the held-out pairs that the rates were chosen on"
        return "; ".join([short] * (longest < LONG) + [seen] * (self.split == "valid"))

    def compete(self) -> list[dict[str, Any]]:
        """Train all that is not trained yet; a signal ends it with `Interrupted`, and the next call goes on."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise QkvError(f"the folder cannot be made ({error.strerror})", self.folder) from error
        if not (self.folder / "compare.json").exists():
            self.save()
        row = example(self.job, self.contestants[0].config.train)
        costs = [self._cost(contestant, row) for contestant in self.contestants]
        self._total = sum(
            len(self.rules.rates_for(one.config)) + self.rules.seeds - 1
            for one, cost in zip(self.contestants, costs, strict=True)
            if isinstance(cost, Expense)
        )
        for contestant, cost in zip(self.contestants, costs, strict=True):
            mine = self._train(contestant) if isinstance(cost, Expense) else []
            self.records.append(self._record(contestant, cost, mine))
            self.save()
        write_atomic(self.folder / "compare.svg", self.draw().encode())
        return self.records

    def save(self) -> None:
        """compare.json: all that is finished so far."""
        write_json(
            self.folder / "compare.json",
            {
                "task": self.job.kind,
                "data": self.job.options,
                "split": self.split,
                "note": self.note,
                "seeds": self.rules.seeds,
                "finished": len(self.records) == len(self.contestants),
                "contestants": {one.name: one.config.to_record() for one in self.contestants},
                "records": self.records,
                "trainings": [asdict(training) for training in self.trainings],
            },
        )

    def draw(self) -> str:
        """The figures as SVG, with their spread: recall against bytes of state, anything else as a bar a contestant."""
        metric = quality(self.records)
        through = [record for record in self.records if record["figures"]]
        seeds = f", {self.rules.seeds} seeds from the lowest to the highest" if self.rules.seeds > 1 else ""
        name = metric.replace("_", " ")
        title = f"{self.job.kind}: {name}{seeds}"
        if through and not all(record["state_bytes"] and record["chance"] for record in through):
            spreads = [(record["contestant"], record["figures"][metric]) for record in through]
            rows = [Bar(contestant, s["mean"], (s["low"], s["high"])) for contestant, s in spreads]
            return bars(rows, title, name)
        series = [
            Series(record["contestant"], [(record["state_bytes"], record["figures"][metric][end]) for end in _ENDS])
            for record in through
        ]
        if through:
            ends, chance = [record["state_bytes"] for record in through], through[0]["chance"]
            series.append(Series("chance", [(min(ends) / 1.5, chance), (max(ends) * 1.5, chance)]))
        return curves(series, title, Axis("bytes of state", log=True), Axis(name))

    def _cost(self, contestant: Contestant, row: Tensors) -> Expense | str:
        """What it costs, or why it cannot be."""
        self.report(Standing(0, 0, f"{contestant.name}: counting its cost"))
        try:
            return expense(contestant.config, self.job, row, self.rules.device)
        except ValueError as error:
            return str(error)

    def _train(self, contestant: Contestant) -> list[Training]:
        """The first seed with every rate, then the others with the best; those of the best have figures."""
        first = contestant.config.train.seed
        tried = [self._keep(contestant, rate, first) for rate in self.rules.rates_for(contestant.config)]
        best = choose(tried)
        if best is None:
            return tried
        others = [self._keep(contestant, best.rate, first + number) for number in range(1, self.rules.seeds)]
        judged = [self._keep_figures(training) for training in (best, *others) if not training.failed]
        return [*(training for training in tried if training is not best), *judged, *(o for o in others if o.failed)]

    def train(self, contestant: Contestant, rate: float, seed: int) -> Training:
        """One training, from where it stands; only its own folder is touched, so several processes may do several."""
        config = replace(contestant.config, train=replace(contestant.config.train, learning_rate=rate, seed=seed))
        config = replace(config, data=self.job.options)
        training = Training(contestant.name, rate, seed, folder_name(contestant.name, rate, seed))
        about = f"{contestant.name}, rate {rate:g}, seed {seed}"
        self.report(Standing(len(self.trainings), self._total, about))
        (run, config), failed = open_run(self.folder / training.run, config, self.job), None
        if not run.weights.exists():
            with run.alone():
                failed = self._finish(run, config, about)
        return replace(training, **learned(run), failed=failed)

    def judge(self, training: Training) -> Training:
        """The training with its figures, measured once and kept beside the weights."""
        path = self.folder / training.run / "figures.json"
        kept = read_json(path) if path.exists() else None
        if kept is None or kept["split"] != self.split:
            kept = {"split": self.split, **self._measure(restore(self.folder / training.run)[2])}
            write_json(path, kept)
        return replace(training, **{name: value for name, value in kept.items() if name != "split"})

    def _keep(self, contestant: Contestant, rate: float, seed: int) -> Training:
        training = self.train(contestant, rate, seed)
        self.trainings.append(training)
        self.report(Standing(len(self.trainings), self._total, f"{contestant.name}, rate {rate:g}, seed {seed}"))
        self.save()
        return training

    def _keep_figures(self, training: Training) -> Training:
        judged = self.judge(training)
        self.trainings[self.trainings.index(training)] = judged
        self.save()
        return judged

    def _finish(self, run: Run, config: Config, about: str) -> str | None:
        """Train to the end from where it stands; why it failed, if the loss was never a number again."""

        def report(line: dict[str, Any]) -> None:
            done = line["step"] / line["steps"] if line.get("steps") else 0.0
            self.report(Standing(len(self.trainings) + min(done, 1.0), self._total, about))

        model = build(config, self.job)
        machine = Machine(self.rules.device, graphs=self.rules.graphs and getattr(model, "recordable", True))
        loop = Loop(self.job.objective(model, config.train), config.train, run, machine, report)
        loop.resume()
        try:
            loop.train()
        except QkvError as error:
            if not any(line.get("event") == "not_finite" for line in run.read_metrics()[-2:]):
                raise
            return str(error)
        return None

    def _measure(self, model: nn.Module) -> dict[str, Any]:
        model.to(self.rules.device)
        found = self.job.evaluate(model, self.split)
        for width in self.rules.beams if isinstance(self.job, Seq2SeqTask) else ():
            wide = self.job.evaluate(model, self.split, beams=width)
            found |= {f"beam_{width}_{name}": value for name, value in wide.items() if name not in COUNTS}
        figures = {name: value for name, value in found.items() if name not in COUNTS and math.isfinite(value)}
        speed = decoding_speed(model, self.job, self.split) if isinstance(self.job, Seq2SeqTask) else None
        return {"figures": figures, "decode_tokens_per_second": speed}

    def _record(self, contestant: Contestant, cost: Expense | str, mine: list[Training]) -> dict[str, Any]:
        judged = [training for training in mine if training.figures is not None]
        first = contestant.config.train.seed
        nothing = dict.fromkeys(Expense.__dataclass_fields__)
        speeds = [t.decode_tokens_per_second for t in judged if t.decode_tokens_per_second is not None]
        return {
            "contestant": contestant.name,
            "family": contestant.config.family,
            "model": contestant.config.model,
            "refused": cost if isinstance(cost, str) else None,
            "failed": [training.failed for training in mine if training.failed],
            "split": self.split,
            "chance": getattr(self.job, "chance", None),
            "figures": spreads([training.figures for training in judged if training.figures is not None]),
            "rate": judged[0].rate if judged else None,
            "rates": [{"rate": t.rate, "held_out": t.held_out} for t in sorted(mine, key=_rate) if t.seed == first],
            "seeds": [training.seed for training in judged],
            **(nothing if isinstance(cost, str) else asdict(cost)),
            "train_tokens_per_second": _mean([training.tokens_per_second for training in judged]),
            "decode_tokens_per_second": _mean(speeds),
            "seconds": sum(training.seconds for training in mine),
        }


def spreads(figures: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Metric -> mean, low and high over the seeds; one that is no number for some seed has no mean."""
    names = [name for name in (figures[0] if figures else {}) if all(name in one for one in figures)]
    found = {name: [one[name] for one in figures] for name in names}
    return {name: {"mean": sum(v) / len(v), "low": min(v), "high": max(v)} for name, v in found.items()}


def quality(records: Sequence[dict[str, Any]]) -> str:
    """The metric that a comparison is about: the first that its figures have."""
    return next((name for record in records for name in record["figures"]), "")


def lower_is_better(metric: str) -> bool:
    """Whether the metric counts errors, or measures surprise."""
    return metric.endswith(("error_rate", "loss", "perplexity", "bits_per_byte"))


def _rate(training: Training) -> float:
    return training.rate


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
