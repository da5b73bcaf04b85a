"""How good a model is at saying words, alone: never through a dictionary."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.pronunciation.answer import Answer, Source
from qkv.pronunciation.arpabet import Phones, strip_stress

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.pronunciation.neural import Network

NINETY_FIVE = 1.959964
"""Standard deviations on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Figures:
    """What was measured; a word is right if it equals one of its references."""

    wer: float
    """Words wrong, a share."""
    per: float
    """Edits to the closest references, by the phones of those."""
    words: int
    words_per_second: float
    """Decoding alone, batched and sorted by length."""
    wer_low: float
    """The 95 % interval of the share of words wrong: how far chance in the choice of words may move it."""
    wer_high: float
    refused: int
    """Words that the model cannot take, too long or with letters it has never seen; they count as wrong."""
    missing: float
    """Words whose right answer is not among the first `best`, a share; equals wer for best 1."""


def measure(
    network: "Network",
    pairs: "Sequence[Pair]",
    *,
    stress: bool = True,
    best: int = 1,
    beams: int = 1,
    length_power: float = 0.0,
) -> Figures:
    """Say every word and compare with the closest of its references; without `stress`, neither side has digits."""
    from qkv.metrics import error_rates  # noqa: PLC0415 - torch is not needed before there is something to measure

    words = ["".join(pair.source) for pair in pairs]
    ready = [place for place, word in enumerate(words) if network.refuse(word) is None]
    wanted = width(1, best, stress=stress)
    network.say([words[place] for place in ready[:64]], wanted, beams, length_power)  # the first call is slower
    started = time.perf_counter()
    said = network.say([words[place] for place in ready], wanted, beams, length_power)
    seconds = time.perf_counter() - started
    found: dict[int, list[Phones]] = {}
    for place, ways in zip(ready, said, strict=True):
        answer = Answer(words[place], Source.model, ways)
        found[place] = [way.phones for way in (answer if stress else answer.without_stress()).best[:best]]
    references = [[t if stress else strip_stress(t) for t in pair.targets] for pair in pairs]
    lists = [found.get(place) or [()] for place in range(len(words))]
    rates = error_rates([ways[0] for ways in lists], references)
    missing = sum(not set(ways) & set(right) for ways, right in zip(lists, references, strict=True))
    low, high = wilson(rates.wrong_sequences, rates.sequences)
    return Figures(
        wer=rates.sequence_error_rate,
        per=rates.token_error_rate,
        words=len(words),
        words_per_second=len(ready) / seconds,
        wer_low=low,
        wer_high=high,
        refused=len(words) - len(ready),
        missing=missing / len(words),
    )


def width(beams: int, best: int, *, stress: bool) -> int:
    """The beam that `best` answers need: without stress twice as wide, for those that differ in it alone are one."""
    return max(beams, best if stress or best == 1 else 2 * best)


def wilson(wrong: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; unlike the normal one it stays inside 0 and 1 and is never empty.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    """
    share, z = wrong / total, NINETY_FIVE
    middle = share + z**2 / (2 * total)
    reach = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return (middle - reach) / (1 + z**2 / total), (middle + reach) / (1 + z**2 / total)
