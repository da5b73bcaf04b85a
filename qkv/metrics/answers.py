"""Scores of the texts that a model writes: BLEU, chrF, exact match, token accuracy.

bleu     BLEU of sacreBLEU, 0 to 100, with its signature       https://aclanthology.org/W18-6319
chrf     chrF of sacreBLEU, 0 to 100, with its signature       https://aclanthology.org/W15-3049
exact    share of answers that equal a reference
tokens   tokens equal to that at the same place of the reference / places of the longer of the two

With several references, `tokens` takes the one in which most tokens are equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from qkv.errors import QkvError, unknown_name_error
from qkv.metrics.resampling import Counts, PairedDifference, Score, bootstrap_interval, paired_difference


@dataclass(frozen=True)
class Answers:
    """What a model wrote for each input of a split, and what is right."""

    sources: Sequence[str]
    texts: Sequence[str]
    references: Sequence[Sequence[str]]
    """Right texts, at least one per answer."""
    tokens: Sequence[Sequence[str]]
    """Tokens of `texts`."""
    reference_tokens: Sequence[Sequence[Sequence[str]]]
    unit: str
    """Unit of the tokens, such as words."""


@dataclass(frozen=True)
class AnswerScore:
    """A score of a set of answers, with its 95 % interval by bootstrap."""

    value: float
    low: float
    high: float
    signature: str = ""
    """How sacreBLEU computed it, with its version; empty: not by sacreBLEU."""


@dataclass(frozen=True)
class _Counted:
    """A metric as counts per answer, and the score of their sum."""

    counts: Counts
    score: Score
    signature: str = ""


def score_answers(
    answers: Answers, names: Sequence[str], *, resamples: int = 1000, seed: int = 0
) -> dict[str, AnswerScore]:
    """Return these metrics with their intervals; an unknown name raises and names the nearest."""
    require_metrics(names)
    if not answers.texts:
        raise ValueError("answers must hold at least one text, got none")
    scores = {}
    for name in names:
        one = _METRICS[name](answers)
        interval = bootstrap_interval(one.counts, one.score, resamples=resamples, seed=seed)
        scores[name] = AnswerScore(one.score(one.counts.sum(0)), *interval, one.signature)
    return scores


def compare_answers(
    first: Answers, second: Answers, names: Sequence[str], *, resamples: int = 1000, seed: int = 0
) -> dict[str, PairedDifference]:
    """Return the difference of two models on the same inputs, by metric; other inputs or references raise."""
    require_metrics(names)
    _require_same_inputs(first, second)
    if "tokens" in names and first.unit != second.unit:
        raise ValueError(
            f"the metric tokens counts tokens of the models, {first.unit} and {second.unit}, which cannot be compared; "
            "leave it out"
        )
    found = {}
    for name in names:
        one, other = (_METRICS[name](answers) for answers in (first, second))
        found[name] = paired_difference(one.counts, other.counts, one.score, resamples=resamples, seed=seed)
    return found


def require_metrics(names: Sequence[str]) -> None:
    """Raise for a metric that does not exist or is named twice."""
    for name in names:
        if name not in _METRICS:
            raise unknown_name_error("metric", name, _METRICS)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"metrics must be different names, at least one, got {', '.join(names) or 'none'}")


def _require_same_inputs(first: Answers, second: Answers) -> None:
    for what, one, other in (
        ("inputs", first.sources, second.sources),
        ("references", first.references, second.references),
    ):
        if list(map(_spaced, one)) != list(map(_spaced, other)):
            raise QkvError(
                f"the two runs must be evaluated on the same examples, but their {what} differ "
                f"({len(one):,} and {len(other):,}); give both the same file with --test-file"
            )


def _spaced(texts: str | Sequence[str]) -> list[list[str]]:
    """Return texts without the kind of their spaces, which models of words do not keep."""
    return [text.split() for text in ([texts] if isinstance(texts, str) else texts)]


def _bleu(answers: Answers) -> _Counted:
    return _by_sacrebleu(_sacrebleu().BLEU(force=True), answers)


def _chrf(answers: Answers) -> _Counted:
    return _by_sacrebleu(_sacrebleu().CHRF(), answers)


def _by_sacrebleu(metric: Any, answers: Answers) -> _Counted:
    """Return the counts of sacreBLEU, as its own significance tests take them."""
    most = max(map(len, answers.references))
    streams = [[own[i] if i < len(own) else None for own in answers.references] for i in range(most)]
    counts = np.array(metric._extract_corpus_statistics(answers.texts, streams), dtype=float)

    def score(total: ndarray) -> float:
        return float(metric._compute_score_from_stats([round(count) for count in total]).score)

    return _Counted(counts, score, str(metric.get_signature()))


def _exact(answers: Answers) -> _Counted:
    rows = [(float(text in own), 1.0) for text, own in zip(answers.texts, answers.references, strict=True)]
    return _Counted(np.array(rows), _share)


def _tokens(answers: Answers) -> _Counted:
    rows = [
        max((_equal_places(written, right) for right in own), key=_share)
        for written, own in zip(answers.tokens, answers.reference_tokens, strict=True)
    ]
    return _Counted(np.array(rows, dtype=float), _share)


def _equal_places(written: Sequence[str], right: Sequence[str]) -> tuple[int, int]:
    equal = sum(one == other for one, other in zip(written, right, strict=False))
    return equal, max(len(written), len(right))


def _share(total: Sequence[float] | ndarray) -> float:
    """Return equal / all; 1 if there is nothing to compare, since an empty answer to an empty reference is right."""
    return float(total[0] / total[1]) if total[1] else 1.0


def _sacrebleu() -> Any:
    try:
        import sacrebleu  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError:
        raise QkvError('the metrics bleu and chrf need the package sacrebleu: pip install "qkv[metrics]"') from None
    return sacrebleu


_METRICS: dict[str, Callable[[Answers], _Counted]] = {"bleu": _bleu, "chrf": _chrf, "exact": _exact, "tokens": _tokens}
ANSWER_METRICS = tuple(_METRICS)
"""Names of the metrics of texts."""
