"""Align the letters of a word with its phones: pairs are segmented into units by expectation maximization.

    ("phone", (F, OW, N))   ->   ph:F  o:OW  n:N  e:-

    p(pair) = sum over its segmentations of the product of p(unit);   p(unit) = its expected fraction of all units

The right segmentation is never given: all are weighted by the units' probabilities, those are counted anew, and so on.
Pairs of the same lengths share one lattice and are processed as a batch.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

WordPhones = tuple[str, tuple[str, ...]]
"""A word and its phones."""
Unit = tuple[str, tuple[str, ...]]
"""Letters and the phones they stand for."""
MOVES = ((1, 0), (1, 1), (1, 2), (2, 1))
"""Allowed (letters, phones) of a unit: always a letter, at most two of either."""
EM_ITERATIONS = 12
MAX_LETTERS = 48
"""Letters of the longest word that is aligned: probabilities of longer ones would underflow."""

Edge = tuple[int, int, int, int]
"""(letter index, phone index, number of letters, number of phones)."""


@dataclass(frozen=True)
class Lattice:
    """All segmentations of the pairs of one size."""

    pair_indices: list[int]
    letters: int
    phones: int
    units: dict[Edge, Tensor]
    """Unit id of each edge in each pair, [pairs]."""


def align(pairs: Sequence[WordPhones], iterations: int = EM_ITERATIONS) -> list[list[Unit] | None]:
    """Return the likeliest segmentation of each pair; None if it is too long or has too many phones for its letters."""
    lattices, size = _renumber_units(_build_lattices(pairs))
    probability = torch.full((size,), 1 / max(size, 1), dtype=torch.float64)
    for _ in range(iterations):
        counts = torch.zeros_like(probability)
        for lattice in lattices:
            _add_expected_counts(lattice, probability, counts)
        probability = counts / counts.sum()
    segmentations: list[list[Unit] | None] = [None] * len(pairs)
    for lattice in lattices:
        for index, path in zip(lattice.pair_indices, _best_paths(lattice, probability.log()), strict=True):
            word, phones = pairs[index]
            segmentations[index] = [(word[i : i + a], phones[j : j + b]) for i, j, a, b in path]
    return segmentations


def _build_lattices(pairs: Sequence[WordPhones]) -> list[Lattice]:
    letter_ids = {x: n for n, x in enumerate(sorted({x for word, _ in pairs for x in word}), 1)}
    phone_ids = {x: n for n, x in enumerate(sorted({x for _, phones in pairs for x in phones}), 1)}
    by_size = defaultdict(list)
    for index, (word, phones) in enumerate(pairs):
        by_size[len(word), len(phones)].append(index)
    lattices = []
    for (length, depth), indices in by_size.items():
        edges = _reachable_edges(length, depth) if length <= MAX_LETTERS else []
        if not edges:
            continue
        spelling = torch.tensor([[letter_ids[x] for x in pairs[n][0]] for n in indices]).view(len(indices), length)
        sounds = torch.tensor([[phone_ids[x] for x in pairs[n][1]] for n in indices]).view(len(indices), depth)
        units = {edge: _unit_ids(edge, spelling, sounds, len(letter_ids) + 1, len(phone_ids) + 1) for edge in edges}
        lattices.append(Lattice(indices, length, depth, units))
    return lattices


def _renumber_units(lattices: list[Lattice]) -> tuple[list[Lattice], int]:
    """Renumber the units that occur from 0 without gaps; return the number of them too."""
    if not lattices:
        return [], 0
    found = [units for lattice in lattices for units in lattice.units.values()]
    different, ids = torch.cat(found).unique(return_inverse=True)
    parts = iter(ids.split([len(units) for units in found]))
    return [replace(one, units={edge: next(parts) for edge in one.units}) for one in lattices], len(different)


def _unit_ids(edge: Edge, spelling: Tensor, sounds: Tensor, letters: int, phones: int) -> Tensor:
    """Return an id of the unit on this edge in each pair: two digits for letters, two for phones, 0 for absent ones."""
    i, j, a, b = edge
    absent = torch.zeros(len(spelling), dtype=torch.long)
    first, second = (spelling[:, i + k] if k < a else absent for k in (0, 1))
    third, fourth = (sounds[:, j + k] if k < b else absent for k in (0, 1))
    return ((first * letters + second) * phones + third) * phones + fourth


def _reachable_edges(length: int, depth: int) -> list[Edge]:
    """Return the edges on some path from (0, 0) to (length, depth), ordered by their starts."""
    cells = [(i, j) for i in range(length + 1) for j in range(depth + 1)]
    reached, leading = {(0, 0)}, {(length, depth)}
    for i, j in cells:
        if (i, j) in reached:
            reached.update((i + a, j + b) for a, b in MOVES)
    for i, j in reversed(cells):
        if (i, j) in leading:
            leading.update((i - a, j - b) for a, b in MOVES)
    return [(i, j, a, b) for i, j in cells for a, b in MOVES if (i, j) in reached and (i + a, j + b) in leading]


def _add_expected_counts(lattice: Lattice, probability: Tensor, counts: Tensor) -> None:
    """Add the expected count of each unit in these pairs, by the forward-backward algorithm."""
    shape = (lattice.letters + 1, lattice.phones + 1, len(lattice.pair_indices))
    forward, backward = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    forward[0, 0] = backward[-1, -1] = 1.0
    for (i, j, a, b), units in lattice.units.items():
        forward[i + a, j + b] += forward[i, j] * probability[units]
    for (i, j, a, b), units in reversed(lattice.units.items()):
        backward[i, j] += backward[i + a, j + b] * probability[units]
    total = forward[-1, -1]
    scale = torch.where(total > 0, 1 / total, 0.0)
    for (i, j, a, b), units in lattice.units.items():
        counts.index_add_(0, units, forward[i, j] * backward[i + a, j + b] * probability[units] * scale)


def _best_paths(lattice: Lattice, logs: Tensor) -> list[list[Edge]]:
    """Return the best path of each pair, by the Viterbi algorithm."""
    shape = (lattice.letters + 1, lattice.phones + 1, len(lattice.pair_indices))
    best = torch.full(shape, -torch.inf, dtype=torch.float64)
    arrival = torch.zeros(shape, dtype=torch.long)  # index of the edge by which each cell is reached
    best[0, 0] = 0.0
    edges = list(lattice.units)
    for index, ((i, j, a, b), units) in enumerate(lattice.units.items()):
        value = best[i, j] + logs[units]
        better = value > best[i + a, j + b]
        best[i + a, j + b] = torch.where(better, value, best[i + a, j + b])
        arrival[i + a, j + b] = torch.where(better, index, arrival[i + a, j + b])
    return [_backtrace(edges, arrivals) for arrivals in arrival.permute(2, 0, 1).tolist()]


def _backtrace(edges: list[Edge], arrivals: list[list[int]]) -> list[Edge]:
    i, j, path = len(arrivals) - 1, len(arrivals[0]) - 1, []
    while i or j:
        path.append(edges[arrivals[i][j]])
        i, j = path[-1][:2]
    return path[::-1]
