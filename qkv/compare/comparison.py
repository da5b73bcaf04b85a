"""A comparison: every candidate trained on one task, with its best learning rate, over several seeds.

    first seed, every learning rate, a quarter of the length -> the rate with the best validation score
    that rate, every seed, the whole length -> test metrics

One learning rate for all would be unfair: kinds differ more in the rate they need than in what they reach with it.
Each trial has a run folder below the comparison's, so finished work is never repeated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from qkv.compare.candidates import Candidate
from qkv.compare.pictures import draw_pictures
from qkv.compare.resources import Resources, measure_resources
from qkv.compare.rules import describe_rules
from qkv.compare.trial import (
    Trial,
    choose_best,
    folder_name,
    open_run,
    read_or_compute,
    read_training_metrics,
    shorten,
)
from qkv.draw import Axis, Bar, Series, bar_chart, line_chart
from qkv.errors import QkvError
from qkv.runs import Config, build, load, make_objective
from qkv.storage import write_atomic, write_json
from qkv.tasks import Task
from qkv.train import Compute, Loop, Run
from qkv.train.objective import Tensors

SHARED_METRICS = ("examples", "chance", "tokens", "words", "pictures")
"""Metrics that are the same for all candidates."""
_ENDS = ("low", "mean", "high")


@dataclass(frozen=True)
class ComparisonStatus:
    """Progress of a comparison."""

    done: float
    """Trials finished, the current one as a fraction."""
    total: int
    description: str


StatusCallback = Callable[[ComparisonStatus], None]


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings that are the same for all candidates."""

    seeds: int = 3
    """Number of seeds; the first is that of the configuration."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates to try (default: multiples of the candidate's own)."""
    device: str = "cpu"
    cuda_graphs: bool = False
    """Whether to use CUDA graphs for models that support them."""
    beam_sizes: tuple[int, ...] = ()
    """Beam sizes to evaluate next to greedy decoding, as metrics such as `beam_5_sequence_error_rate`."""

    search_fraction: float = 0.25
    """Length of the trainings that choose a learning rate; 1: whole, and the best of them counts as the first seed."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not 0 < self.search_fraction <= 1:
            raise ValueError(f"search_fraction must be above 0 and at most 1, got {self.search_fraction}")
        for rate in self.learning_rates:
            if not 0 < rate < math.inf:
                raise ValueError(f"a learning rate must be more than 0, got {rate}")

    def learning_rates_for(self, config: Config, factors: Sequence[float]) -> list[float]:
        """Return the learning rates to try, in order, each once."""
        defaults = [float(f"{factor * config.train.learning_rate:.3g}") for factor in factors]
        return list(dict.fromkeys(self.learning_rates or defaults))

    def search_fraction_for(self, rates: Sequence[float]) -> float:
        """Return the length of the search; a single learning rate needs no search."""
        return self.search_fraction if len(rates) > 1 else 1.0


@dataclass
class Comparison:
    """A comparison and its folder; `records` has one entry per finished candidate."""

    task: Task
    candidates: Sequence[Candidate]
    folder: Path
    settings: ComparisonSettings
    on_status: StatusCallback
    trials: list[Trial] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    _total_trials: int = 0

    @property
    def split(self) -> str:
        """Split that candidates are evaluated on."""
        return self.task.default_split

    @property
    def caveat(self) -> str:
        """Limits of the evidence; empty: nothing to add."""
        return self.task.caveat(self.split)

    def run(self) -> list[dict[str, Any]]:
        """Train what is not yet trained; a signal raises `Interrupted`, and the next call resumes."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise QkvError(f"the folder cannot be created ({error.strerror})", self.folder) from error
        if not (self.folder / "compare.json").exists():
            self.save()
        batch = self.task.example_batch(self.candidates[0].config.train)
        costs = [self._measure_cost(candidate, batch) for candidate in self.candidates]
        self._total_trials = sum(
            self._count_trials(candidate)
            for candidate, cost in zip(self.candidates, costs, strict=True)
            if isinstance(cost, Resources)
        )
        for candidate, cost in zip(self.candidates, costs, strict=True):
            trials = self._train_candidate(candidate) if isinstance(cost, Resources) else []
            self.records.append(self._record(candidate, cost, trials))
            self.save()
        pictures = {"compare.svg": self.draw(), **draw_pictures(self.records, self.task.kind)}
        for name, picture in pictures.items():
            write_atomic(self.folder / name, picture.encode())
        return self.records

    def save(self) -> None:
        """Write compare.json with everything finished so far."""
        write_json(
            self.folder / "compare.json",
            {
                "task": self.task.kind,
                "data": self.task.options,
                "split": self.split,
                "note": self.caveat,
                "seeds": self.settings.seeds,
                "search_fraction": self.settings.search_fraction,
                "rules": self.rules(),
                "finished": len(self.records) == len(self.candidates),
                "contestants": {candidate.name: candidate.config.to_record() for candidate in self.candidates},
                "records": self.records,
                "trainings": [trial.to_record() for trial in self.trials],
            },
        )

    def rules(self) -> list[str]:
        """Return sentences on how fair the comparison is and how long it took, to print below its table."""
        counts = [self._rates(candidate) for candidate in self.candidates]
        return describe_rules(self.records, counts, self.settings.search_fraction)

    def draw(self) -> str:
        """Return an SVG of the main metric and its spread: against state bytes if all have them, else as bars."""
        metric = main_metric(self.records)
        finished = [record for record in self.records if record["figures"]]
        seeds = f", {self.settings.seeds} seeds from the lowest to the highest" if self.settings.seeds > 1 else ""
        name = metric.replace("_", " ")
        title = f"{self.task.kind}: {name}{seeds}"
        if finished and not all(record["state_bytes"] and record["chance"] for record in finished):
            spread = [(record["contestant"], record["figures"][metric]) for record in finished]
            rows = [Bar(candidate, s["mean"], (s["low"], s["high"])) for candidate, s in spread]
            return bar_chart(rows, title, name)
        series = [
            Series(record["contestant"], [(record["state_bytes"], record["figures"][metric][end]) for end in _ENDS])
            for record in finished
        ]
        if finished:
            sizes, chance = [record["state_bytes"] for record in finished], finished[0]["chance"]
            series.append(Series("chance", [(min(sizes) / 1.5, chance), (max(sizes) * 1.5, chance)]))
        return line_chart(series, title, Axis("bytes of state", log=True), Axis(name))

    def train(self, candidate: Candidate, learning_rate: float, seed: int, fraction: float = 1.0) -> Trial:
        """Run or resume one trial; it touches only its own folder, so several processes may run several trials."""
        train = shorten(replace(candidate.config.train, learning_rate=learning_rate, seed=seed), fraction)
        config = replace(candidate.config, train=train, data=self.task.options)
        folder = folder_name(candidate.name, learning_rate, seed, search=fraction < 1)
        trial = Trial(candidate.name, learning_rate, seed, folder, search=fraction < 1)
        self._report(trial)
        run, failed = Run(self.folder / trial.run), None
        if run.is_finished():
            open_run(run.folder, config, self.task)
        else:
            with run.lock():
                _, config = open_run(run.folder, config, self.task)
                failed = self._train_to_end(run, config, trial)
        if failed:
            return replace(trial, **read_training_metrics(run), failed=failed)
        return replace(trial, **read_or_compute(run, "training.json", lambda: read_training_metrics(run)))

    def evaluate(self, trial: Trial) -> Trial:
        """Return the trial with its test metrics, which are computed once and sealed in figures.json."""
        run = Run(self.folder / trial.run)

        def compute() -> dict[str, Any]:
            _, _, model = load(run.folder)
            return {"split": self.split, **self._evaluate_model(model)}

        saved = read_or_compute(run, "figures.json", compute, lambda record: record["split"] == self.split)
        return replace(trial, **{name: value for name, value in saved.items() if name != "split"})

    def _measure_cost(self, candidate: Candidate, batch: Tensors) -> Resources | str:
        """Return what the candidate costs, or why its model cannot be built."""
        self.on_status(ComparisonStatus(0, 0, f"{candidate.name}: preparing its data and counting its cost"))
        try:
            return measure_resources(candidate.config, self.task, batch, self.settings.device)
        except ValueError as error:
            return str(error)

    def _train_candidate(self, candidate: Candidate) -> list[Trial]:
        """Search with the first seed, train every seed with the best learning rate, and evaluate those trials."""
        first = candidate.config.train.seed
        rates = self._rates(candidate)
        fraction = self.settings.search_fraction_for(rates)
        tried = [self._train_and_save(candidate, rate, first, fraction) for rate in rates]
        best = choose_best(tried)
        if best is None:
            return tried
        kept = [] if best.search else [best]  # a whole training of the search is that of the first seed
        seeds = range(first + len(kept), first + self.settings.seeds)
        others = [self._train_and_save(candidate, best.learning_rate, seed) for seed in seeds]
        evaluated = [self._evaluate_and_save(trial) for trial in (*kept, *others) if not trial.failed]
        failed = [trial for trial in others if trial.failed]
        return [*(trial for trial in tried if trial not in kept), *evaluated, *failed]

    def _rates(self, candidate: Candidate) -> list[float]:
        return self.settings.learning_rates_for(candidate.config, self.task.learning_rate_factors)

    def _count_trials(self, candidate: Candidate) -> int:
        rates = self._rates(candidate)
        return len(rates) + self.settings.seeds - (self.settings.search_fraction_for(rates) == 1)

    def _train_and_save(self, candidate: Candidate, learning_rate: float, seed: int, fraction: float = 1.0) -> Trial:
        trial = self.train(candidate, learning_rate, seed, fraction)
        self.trials.append(trial)
        self._report(trial)
        self.save()
        return trial

    def _evaluate_and_save(self, trial: Trial) -> Trial:
        evaluated = self.evaluate(trial)
        self.trials[self.trials.index(trial)] = evaluated
        self.save()
        return evaluated

    def _report(self, trial: Trial, fraction: float = 0.0) -> None:
        """Report the trials finished and the fraction of this one."""
        search = "search, " if trial.search else ""
        description = f"{trial.candidate}, {search}rate {trial.learning_rate:g}, seed {trial.seed}"
        self.on_status(ComparisonStatus(len(self.trials) + fraction, self._total_trials, description))

    def _train_to_end(self, run: Run, config: Config, trial: Trial) -> str | None:
        """Train or resume to the end; return why it failed, if the loss stayed non-finite."""

        def report(line: dict[str, Any]) -> None:
            done = line["step"] / line["steps"] if line.get("steps") else 0.0
            self._report(trial, min(done, 1.0))

        model = build(config, self.task)
        graphs = self.settings.cuda_graphs and getattr(model, "supports_cuda_graphs", True)
        compute = Compute(self.settings.device, graphs=graphs)
        loop = Loop(make_objective(config, self.task, model), config.train, run, compute, report)
        loop.resume()
        try:
            loop.train()
        except QkvError as error:
            if not any(line.get("event") == "not_finite" for line in run.read_metrics()[-2:]):
                raise
            return str(error)
        return None

    def _evaluate_model(self, model: nn.Module) -> dict[str, Any]:
        model.to(self.settings.device)
        metrics = self.task.evaluate(model, self.split)
        for beams in self.settings.beam_sizes if self.task.decodes else ():
            by_beam = self.task.evaluate(model, self.split, beams=beams)
            metrics |= {f"beam_{beams}_{name}": value for name, value in by_beam.items() if name not in SHARED_METRICS}
        figures = {
            name: value for name, value in metrics.items() if name not in SHARED_METRICS and math.isfinite(value)
        }
        return {"figures": figures, "decode_tokens_per_second": self.task.decoding_speed(model, self.split)}

    def _record(self, candidate: Candidate, cost: Resources | str, trials: list[Trial]) -> dict[str, Any]:
        """Return the row of a candidate; `cost` is a text if its model cannot be built."""
        evaluated = [trial for trial in trials if trial.figures is not None]
        whole = [trial for trial in trials if trial.seed == candidate.config.train.seed]
        tried = [trial for trial in trials if trial.search] or whole
        by_rate = sorted(tried, key=lambda trial: trial.learning_rate)
        speeds = [t.decode_tokens_per_second for t in evaluated if t.decode_tokens_per_second is not None]
        no_cost = dict.fromkeys(Resources.__dataclass_fields__)
        return {
            "contestant": candidate.name,
            "family": candidate.config.family,
            "model": candidate.config.model,
            "refused": cost if isinstance(cost, str) else None,
            "failed": [trial.failed for trial in trials if trial.failed],
            "split": self.split,
            "chance": self.task.chance,
            "figures": spreads([trial.figures for trial in evaluated if trial.figures is not None]),
            "rate": evaluated[0].learning_rate if evaluated else None,
            "rates": [{"rate": trial.learning_rate, "held_out": trial.held_out} for trial in by_rate],
            "seeds": [trial.seed for trial in evaluated],
            **(no_cost if isinstance(cost, str) else asdict(cost)),
            "unit": self.task.unit,
            "train_tokens_per_second": _mean([trial.tokens_per_second for trial in evaluated]),
            "decode_tokens_per_second": _mean(speeds),
            "tokens": sorted({trial.tokens for trial in evaluated}),
            "seconds": sum(trial.seconds for trial in trials),
        }


def spreads(figures: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return metric -> mean, low and high over the seeds, for metrics that are finite for every seed."""
    names = [name for name in (figures[0] if figures else {}) if all(name in one for one in figures)]
    values = {name: [one[name] for one in figures] for name in names}
    return {name: {"mean": sum(v) / len(v), "low": min(v), "high": max(v)} for name, v in values.items()}


def main_metric(records: Sequence[dict[str, Any]]) -> str:
    """Return the main metric of a comparison: the first that its records have."""
    return next((name for record in records for name in record["figures"]), "")


def lower_is_better(metric: str) -> bool:
    """Return whether the metric is an error rate, a loss, a perplexity, a time or a number of stages."""
    return metric.endswith(("error_rate", "loss", "perplexity", "bits_per_byte", "_ms", "ms_per_picture", "stages"))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
