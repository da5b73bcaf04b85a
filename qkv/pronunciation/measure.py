"""Measure the accuracy of a model alone, without a dictionary."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.pronunciation.answer import Pronunciation, Source, WordAnswer
from qkv.pronunciation.arpabet import Phones, strip_stress

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.pronunciation.neural import NeuralG2P

Z_95 = 1.959964
"""Standard deviations on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class PronunciationMetrics:
    """Error rates and speed; a word is right if it equals one of its references."""

    wer: float
    """Word error rate, a fraction."""
    per: float
    """Phone error rate: edits to the closest references per phone of those."""
    words: int
    words_per_second: float
    """Speed of decoding alone, in batches sorted by length."""
    wer_low: float
    """Lower end of the 95 % confidence interval of the word error rate."""
    wer_high: float
    refused: int
    """Words that the model cannot take: too long, or with unknown letters. They count as wrong."""
    missing: float
    """Fraction of words without a right answer among the first `best`; equals wer for best 1."""


def measure_pronunciation(
    network: "NeuralG2P",
    pairs: "Sequence[Pair]",
    *,
    stress: bool = True,
    best: int = 1,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> PronunciationMetrics:
    """Predict every word and compare with the closest of its references; `stress=False` ignores stress digits."""
    from qkv.metrics import error_rates  # noqa: PLC0415 - importing this module must not import torch

    words = ["".join(pair.source) for pair in pairs]
    supported = [index for index, word in enumerate(words) if network.unsupported_reason(word) is None]
    n_best = required_beam_width(1, best, stress=stress)
    network.predict([words[index] for index in supported[:64]], n_best, beams, length_penalty)  # warm up
    started = time.perf_counter()
    predictions = network.predict([words[index] for index in supported], n_best, beams, length_penalty)
    seconds = time.perf_counter() - started
    predicted = {
        index: _phones(words[index], found, best, stress) for index, found in zip(supported, predictions, strict=True)
    }
    references = [[t if stress else strip_stress(t) for t in pair.targets] for pair in pairs]
    lists = [predicted.get(index) or [()] for index in range(len(words))]
    rates = error_rates([found[0] for found in lists], references)
    missing = sum(not set(found) & set(right) for found, right in zip(lists, references, strict=True))
    low, high = wilson_interval(rates.wrong_sequences, rates.sequences)
    return PronunciationMetrics(
        wer=rates.sequence_error_rate,
        per=rates.token_error_rate,
        words=len(words),
        words_per_second=len(supported) / seconds,
        wer_low=low,
        wer_high=high,
        refused=len(words) - len(supported),
        missing=missing / len(words),
    )


def required_beam_width(beams: int, best: int, *, stress: bool) -> int:
    """Return the beam width for `best` answers: twice as many without stress, as some differ in stress alone."""
    return max(beams, best if stress or best == 1 else 2 * best)


def wilson_interval(wrong: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a fraction; unlike the normal one it is inside 0..1 and never empty.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    """
    fraction, z = wrong / total, Z_95
    center = fraction + z**2 / (2 * total)
    margin = z * math.sqrt(fraction * (1 - fraction) / total + z**2 / (4 * total**2))
    return (center - margin) / (1 + z**2 / total), (center + margin) / (1 + z**2 / total)


def _phones(word: str, found: tuple[Pronunciation, ...], best: int, stress: bool) -> list[Phones]:
    answer = WordAnswer(word, Source.model, found)
    return [one.phones for one in (answer if stress else answer.without_stress()).best[:best]]
