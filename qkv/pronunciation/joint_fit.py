"""The n-grams of a joint model: interpolated modified Kneser-Ney.

    p(u | context) = max(count - discount, 0) / total + left(context) p(u | shorter context)

The count of an n-gram that is not the longest is in how many ways it is preceded: a unit that only ever follows one
other is no likely one elsewhere. Those that begin a word keep their own count, for nothing precedes them.
Paper: Chen and Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, 1999.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.pronunciation.alignment import Pair, Unit, align
from qkv.pronunciation.joint_ngram import END, START, STEPS, Joint, build

ORDER = 6
"""Units in the longest n-gram: more take more room and do no better."""

MOST = 2**16 - 1
"""Units, START and END among them: each is a number of 16 bits."""


@dataclass(frozen=True)
class Grams:
    """The different n-grams of one length, ordered by the number of their first n - 1 units, then by the last."""

    before: Tensor
    """The number of the first n - 1 units, among those of that length."""
    last: Tensor
    count: Tensor
    shorter: Tensor
    """The number of the last n - 1 units."""
    opens: Tensor
    """Whether it begins a word."""


def fit(pairs: Sequence[Pair], order: int = ORDER) -> Joint:
    """The joint model of these pairs; its weight is 0 until one is chosen."""
    cuts = [cut for cut in align(pairs) if cut is not None]
    if not cuts:
        raise ValueError(f"none of the {len(pairs)} pairs can be cut into units of letters and phones")
    units: dict[Unit, int] = {}
    rows = [[START, *(units.setdefault(unit, len(units) + 2) for unit in cut), END] for cut in cuts]
    if len(units) + 2 > MOST:
        raise ValueError(
            f"the pairs have {len(units):,} different units of letters and phones; at most {MOST - 2:,} go"
        )
    grams = _count(rows, len(units) + 2, order)
    probability, left = _smooth(grams, len(units) + 2)
    return _kept(list(units), grams, probability, left)


def _count(rows: list[list[int]], width: int, order: int) -> list[Grams]:
    stream = torch.tensor([unit for row in rows for unit in row])
    place = torch.cat([torch.arange(len(row)) for row in rows])
    alone = torch.arange(width)
    nothing = torch.zeros(width, dtype=torch.long)
    found = [Grams(nothing, alone, torch.bincount(stream, minlength=width), nothing, alone == START)]
    at = stream  # the number of the n-gram that ends at each position
    for n in range(2, order + 1):
        ends = (place >= n - 1).nonzero()[:, 0]
        keys, inverse, count = (at[ends - 1] * width + stream[ends]).unique(return_inverse=True, return_counts=True)
        example = torch.empty(len(keys), dtype=torch.long).scatter_(0, inverse, ends)  # any position of each
        found.append(Grams(keys // width, keys % width, count, at[example], place[example] == n - 1))
        at = torch.full_like(stream, -1).scatter_(0, ends, inverse)
    return found


def _smooth(grams: list[Grams], width: int) -> tuple[list[Tensor], list[Tensor]]:
    """The probability of each n-gram's last unit, and what each context leaves to the shorter one."""
    probability: list[Tensor] = []
    left: list[Tensor] = []
    for n, one in enumerate(grams):
        count = one.count
        if n + 1 < len(grams):
            count = torch.where(one.opens, count, torch.bincount(grams[n + 1].shorter, minlength=len(count)))
        if n == 0:
            count = count.masked_fill(one.last == START, 0)  # nothing is followed by a beginning
        contexts = len(grams[n - 1].last) if n else 1
        total = torch.bincount(one.before, count.double(), minlength=contexts)
        own = (count - _discount(count)) / total.clamp(min=1)[one.before]
        left.append(1 - torch.bincount(one.before, own, minlength=contexts))
        base = probability[-1][one.shorter] if n else torch.full_like(own, 1 / (width - 1))
        probability.append(own + left[-1][one.before] * base)
    return probability, left


def _discount(count: Tensor) -> Tensor:
    """What each count gives up: other amounts for 1, for 2, and for 3 and more."""
    n1, n2, n3, n4 = (max(int((count == n).sum()), 1) for n in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    wanted = (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    amounts = torch.tensor([min(max(x, 0.0), float(most)) for most, x in enumerate(wanted)], dtype=torch.float64)
    return amounts[count.clamp(max=3)]


def _kept(units: list[Unit], grams: list[Grams], probability: list[Tensor], left: list[Tensor]) -> Joint:
    """Node 0, then the n-grams of each length in their order: so the children of a node lie side by side."""
    root = torch.zeros(1, dtype=torch.float64)
    logs = torch.cat([root, *(x.clamp(min=1e-30).log() for x in probability)])
    longest = torch.zeros(len(grams[-1].last), dtype=torch.float64)
    backs = torch.cat([*(x.clamp(min=1e-30).log() for x in left), longest])
    contexts = [1, *(len(one.last) for one in grams[:-1])]
    children = [torch.bincount(one.before, minlength=many) for one, many in zip(grams, contexts, strict=True)]
    last = torch.cat([torch.zeros(1, dtype=torch.long), *(one.last for one in grams)])
    counts = torch.cat([*children, torch.zeros(len(grams[-1].last), dtype=torch.long)])
    return build(units, array("H", last.tolist()), _steps(logs), _steps(backs), array("H", counts.tolist()))


def _steps(logs: Tensor) -> bytes:
    return bytes((-logs * STEPS).round().clamp(0, 255).to(torch.uint8).tolist())
