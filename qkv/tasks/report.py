"""The report of a run that maps strings: how it learned, how often it errs, what it answers, where it looked."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from qkv.data import Pair
from qkv.draw import Answer, Example, Picture, Report, alignment_panels
from qkv.explain import Alignment, alignment
from qkv.random import derive_seed
from qkv.runs.load import Config
from qkv.tasks.pairs import Seq2SeqTask
from qkv.tasks.seq2seq import Search, answer
from qkv.train import Run

SHOWN = 10
PICTURED = 4
BEAMS = 4
"""Of what is answered, and of what is looked at: the picture is of the best answer."""


def unseen(job: Seq2SeqTask, count: int = SHOWN, seed: int = 0) -> list[Pair]:
    """A few pairs of the test part, or of those held out: the same ones every time."""
    pairs = job.strings.parts.get("test") or job.strings.parts["valid"]
    ranked = sorted(range(len(pairs)), key=lambda number: derive_seed(seed, "pairs to show", number))
    return [pairs[number] for number in ranked[:count]]


def examples(job: Seq2SeqTask, model: nn.Module, pairs: list[Pair], best: int = 3) -> list[Example]:
    """What the model answers to each, with probabilities, beside what is right."""
    found = answer(model, job.strings, [pair.source for pair in pairs], Search(beams=max(BEAMS, best), best=best))
    return [
        Example(
            "".join(pair.source) if job.settings.source == "characters" else " ".join(pair.source),
            [Answer(text(job, h.tokens), math.exp(h.log_probability)) for h in hypotheses],
            [written(job, target) for target in pair.targets],
        )
        for pair, hypotheses in zip(pairs, found, strict=True)
    ]


def looked(job: Seq2SeqTask, model: nn.Module, pair: Pair) -> tuple[tuple[str, ...], Alignment] | None:
    """What the model writes for this source and where it looked meanwhile; None if it cannot look."""
    ((hypothesis,),) = answer(model, job.strings, [pair.source], Search(beams=BEAMS))
    try:
        where = alignment(model, job.strings.sources.encode(pair.source), list(hypothesis.tokens))
    except ValueError:
        return None
    return (*job.strings.targets.decode(hypothesis.tokens), "end"), where


def make_report(
    run: Run, config: Config, job: Seq2SeqTask, model: nn.Module, rates: dict[str, dict[str, float]]
) -> Report:
    """All that the page shows."""
    lines = run.read_metrics()
    shown = unseen(job)
    pictures = []
    for pair in shown[:PICTURED]:
        if (seen := looked(job, model, pair)) is not None:
            word = " ".join(pair.source) if job.settings.source == "words" else "".join(pair.source)
            pictures.append(Picture(word, seen[0], pair.source, alignment_panels(seen[1])))
    return Report(
        title=f"{config.task}: {config.family}",
        family=config.family,
        parameters=sum(p.numel() for p in model.parameters()),
        settings={"model": _shown(config.model), "training": _shown(asdict(config.train)), "data": _shown(config.data)},
        training=[
            (line["step"], line["loss"]) for line in lines if line.get("loss") is not None and "event" not in line
        ],
        validation=[(line["step"], line["score"]) for line in lines if line.get("event") == "validated"],
        rates=rates,
        examples=examples(job, model, shown),
        pictures=pictures,
        trained_with=trained_with(config.train.label_smoothing, job.settings.teachers),
    )


def trained_with(smoothing: float, teachers: str) -> str:
    """What the training loss has in it and the validation loss, which is that of the right answers alone, has not."""
    parts = [f"label smoothing {smoothing:g}"] if smoothing else []
    return " and ".join([*parts, *(["teachers"] if teachers else [])])


def text(job: Seq2SeqTask, tokens: tuple[int, ...]) -> str:
    """An answer as people write it."""
    return written(job, job.strings.targets.decode(tokens))


def written(job: Seq2SeqTask, tokens: Sequence[str]) -> str:
    """A target as people write it."""
    return ("" if job.settings.target == "characters" else " ").join(tokens)


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
