"""Fit the joint n-gram model: interpolated modified Kneser-Ney smoothing.

    p(u | context) = max(count - discount, 0) / total + backoff(context) p(u | shorter context)

Below the highest order, the count of an n-gram is the number of different units before it: a unit that only ever
follows one other is unlikely elsewhere. N-grams that begin a word keep their own count, since nothing precedes them.
Paper: Chen and Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, 1999.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.pronunciation.alignment import Unit, WordPhones, align
from qkv.pronunciation.joint_ngram import END, LOG_STEPS, START, JointNGram, build_trie

DEFAULT_ORDER = 6
"""Units in the longest n-gram: a higher order takes more memory and is no better."""

MAX_UNITS = 2**16 - 1
"""Number of units including START and END: ids have 16 bits."""


@dataclass(frozen=True)
class NGrams:
    """The distinct n-grams of one length, sorted by the id of their first n - 1 units, then by the last unit."""

    prefix: Tensor
    """Id of the first n - 1 units, among the n-grams of that length."""
    last: Tensor
    count: Tensor
    suffix: Tensor
    """Id of the last n - 1 units."""
    starts_word: Tensor
    """Whether the n-gram begins a word."""


def fit_joint_ngram(pairs: Sequence[WordPhones], order: int = DEFAULT_ORDER) -> JointNGram:
    """Fit the joint model of these pairs; its weight is 0 until `fit_joint_weights` sets it."""
    segmentations = [found for found in align(pairs) if found is not None]
    if not segmentations:
        raise ValueError(f"none of the {len(pairs)} pairs can be segmented into units of letters and phones")
    units: dict[Unit, int] = {}
    rows = [[START, *(units.setdefault(unit, len(units) + 2) for unit in found), END] for found in segmentations]
    if len(units) + 2 > MAX_UNITS:
        raise ValueError(
            f"the pairs have {len(units):,} different units of letters and phones; the limit is {MAX_UNITS - 2:,}"
        )
    grams = _count_ngrams(rows, len(units) + 2, order)
    probability, backoff = _smooth(grams, len(units) + 2)
    return _to_trie(list(units), grams, probability, backoff)


def _count_ngrams(rows: list[list[int]], width: int, order: int) -> list[NGrams]:
    stream = torch.tensor([unit for row in rows for unit in row])
    position = torch.cat([torch.arange(len(row)) for row in rows])
    unit_ids = torch.arange(width)
    nothing = torch.zeros(width, dtype=torch.long)
    found = [NGrams(nothing, unit_ids, torch.bincount(stream, minlength=width), nothing, unit_ids == START)]
    ending = stream  # id of the n-gram that ends at each position
    for n in range(2, order + 1):
        ends = (position >= n - 1).nonzero()[:, 0]
        keys, inverse, count = (ending[ends - 1] * width + stream[ends]).unique(return_inverse=True, return_counts=True)
        example = torch.empty(len(keys), dtype=torch.long).scatter_(0, inverse, ends)  # any position of each n-gram
        found.append(NGrams(keys // width, keys % width, count, ending[example], position[example] == n - 1))
        ending = torch.full_like(stream, -1).scatter_(0, ends, inverse)
    return found


def _smooth(grams: list[NGrams], width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the probability of each n-gram's last unit, and the back-off weight of each context."""
    probability: list[Tensor] = []
    backoff: list[Tensor] = []
    for n, one in enumerate(grams):
        count = one.count
        if n + 1 < len(grams):
            count = torch.where(one.starts_word, count, torch.bincount(grams[n + 1].suffix, minlength=len(count)))
        if n == 0:
            count = count.masked_fill(one.last == START, 0)  # START follows nothing
        contexts = len(grams[n - 1].last) if n else 1
        total = torch.bincount(one.prefix, count.double(), minlength=contexts)
        own = (count - _discount(count)) / total.clamp(min=1)[one.prefix]
        backoff.append(1 - torch.bincount(one.prefix, own, minlength=contexts))
        base = probability[-1][one.suffix] if n else torch.full_like(own, 1 / (width - 1))
        probability.append(own + backoff[-1][one.prefix] * base)
    return probability, backoff


def _discount(count: Tensor) -> Tensor:
    """Return the discount of each count: one amount for 1, one for 2, one for 3 and more."""
    n1, n2, n3, n4 = (max(int((count == n).sum()), 1) for n in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    wanted = (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    amounts = torch.tensor([min(max(x, 0.0), float(most)) for most, x in enumerate(wanted)], dtype=torch.float64)
    return amounts[count.clamp(max=3)]


def _to_trie(units: list[Unit], grams: list[NGrams], probability: list[Tensor], backoff: list[Tensor]) -> JointNGram:
    """Return the model: node 0, then the n-grams of each length in order, so that children of a node are adjacent."""
    root = torch.zeros(1, dtype=torch.float64)
    logs = torch.cat([root, *(x.clamp(min=1e-30).log() for x in probability)])
    longest = torch.zeros(len(grams[-1].last), dtype=torch.float64)
    backs = torch.cat([*(x.clamp(min=1e-30).log() for x in backoff), longest])
    contexts = [1, *(len(one.last) for one in grams[:-1])]
    children = [torch.bincount(one.prefix, minlength=many) for one, many in zip(grams, contexts, strict=True)]
    last = torch.cat([torch.zeros(1, dtype=torch.long), *(one.last for one in grams)])
    counts = torch.cat([*children, torch.zeros(len(grams[-1].last), dtype=torch.long)])
    return build_trie(units, array("H", last.tolist()), _quantize(logs), _quantize(backs), array("H", counts.tolist()))


def _quantize(logs: Tensor) -> bytes:
    return bytes((-logs * LOG_STEPS).round().clamp(0, 255).to(torch.uint8).tolist())
