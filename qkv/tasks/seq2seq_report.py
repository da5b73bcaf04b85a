"""The report of a sequence-to-sequence run: learning curves, error rates, sample answers, attention maps."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from qkv.data import Pair
from qkv.draw import AlignmentFigure, Example, Mistakes, ReportAnswer, TrainingReport, alignment_panels
from qkv.explain import Alignment, alignment
from qkv.inference.seq2seq import Search, predict_targets
from qkv.random import derive_seed
from qkv.tasks.base import RunSummary, Sample
from qkv.tasks.report import make_training_report

if TYPE_CHECKING:
    from qkv.tasks.pairs import Seq2SeqTask

EXAMPLES = 10
FIGURES = 4
BEAMS = 4
"""Beam width of answers and of attention maps: the map shows the best answer."""
CHECKED = 1000
"""Maximum number of pairs to search for wrong answers."""
MAX_MISTAKES = 50
BEST = 3
"""Answers per example."""


def sample_pairs(task: "Seq2SeqTask", count: int = EXAMPLES, seed: int = 0, split: str | None = None) -> list[Pair]:
    """Return a few pairs of a split (default: the evaluated one), the same ones every time."""
    pairs = task.data.splits[split or task.default_split]
    ranked = sorted(range(len(pairs)), key=lambda index: derive_seed(seed, "pairs to show", index))
    return [pairs[index] for index in ranked[:count]]


def example_answers(task: "Seq2SeqTask", model: nn.Module, pairs: list[Pair], best: int = BEST) -> list[Example]:
    """Return the model's answers to each pair with their probabilities, and the references."""
    search = Search(beams=max(BEAMS, best), n_best=best)
    found = predict_targets(model, task.data.sources, [pair.source for pair in pairs], search)
    examples = []
    for pair, hypotheses in zip(pairs, found, strict=True):
        answers = [
            ReportAnswer(task.join_target(task.data.targets.decode(one.tokens)), math.exp(one.log_probability))
            for one in hypotheses
        ]
        references = [task.join_target(target) for target in pair.targets]
        examples.append(Example(task.join_source(pair.source), answers, references))
    return examples


def best_alignment(task: "Seq2SeqTask", model: nn.Module, pair: Pair) -> tuple[tuple[str, ...], Alignment] | None:
    """Return the tokens of the best answer with END, and their attention over the source; None: no attention."""
    ((hypothesis,),) = predict_targets(model, task.data.sources, [pair.source], Search(beams=BEAMS))
    try:
        found = alignment(model, task.data.sources.encode(pair.source), list(hypothesis.tokens))
    except ValueError:
        return None
    return (*task.units.target.labels(task.data.targets.decode(hypothesis.tokens)), "end"), found


def make_samples(task: "Seq2SeqTask", model: nn.Module) -> list[Sample]:
    """Return held-out sources with answers, references and, per answer token, the most attended source token."""
    pairs = sample_pairs(task)
    samples = []
    for pair, example in zip(pairs, example_answers(task, model, pairs), strict=True):
        found = best_alignment(task, model, pair)
        attended = "" if found is None else _most_attended(task.units.source.labels(pair.source), *found)
        answers = [(answer.text, answer.probability or 0.0) for answer in example.answers]
        samples.append(Sample(example.source, answers, list(example.references), attended))
    return samples


def _most_attended(source: list[str], tokens: tuple[str, ...], found: Alignment) -> str:
    positions = [row.index(max(row)) for row in found.weights]
    return " ".join(f"{token}:{source[position]}" for token, position in zip(tokens, positions, strict=True))


def make_report(task: "Seq2SeqTask", model: nn.Module, summary: RunSummary) -> TrainingReport:
    """Return all that the report page shows."""
    pairs = sample_pairs(task)
    figures = []
    for pair in pairs[:FIGURES]:
        found = best_alignment(task, model, pair)
        if found is not None:
            tokens, weights = found
            figures.append(
                AlignmentFigure(
                    task.join_source(pair.source),
                    tokens,
                    task.units.source.labels(pair.source),
                    alignment_panels(weights),
                )
            )
    return replace(
        make_training_report(task, model, summary),
        examples=example_answers(task, model, pairs),
        alignments=figures,
        training_loss_extra=extra_losses(summary.train.label_smoothing, task.settings.teachers),
    )


def find_mistakes(task: "Seq2SeqTask", model: nn.Module, split: str) -> Mistakes:
    """Return sources whose best answer is none of their targets, among at most `CHECKED` pairs of a split."""
    pairs = sample_pairs(task, CHECKED, split=split)
    examples = example_answers(task, model, pairs, best=1)
    wrong = [one for one in examples if not one.answers or one.answers[0].text not in one.references]
    return Mistakes(wrong[:MAX_MISTAKES], len(wrong), len(pairs))


def extra_losses(label_smoothing: float, teachers: str) -> str:
    """Return what the training loss includes and the validation loss does not."""
    parts = [f"label smoothing {label_smoothing:g}"] if label_smoothing else []
    if teachers:
        parts.append("teachers")
    return " and ".join(parts)
