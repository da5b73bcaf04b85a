"""Which letters of a word make which of its phones: pairs are cut into units by expectation maximization.

    ("phone", (F, OW, N))   ->   ph:F  o:OW  n:N  e:-

    p(pair) = sum over its cuts of the product of p(unit);   p(unit) = its expected share of all units

Nobody says which cut is right: all are weighed by the units' probabilities, those are counted anew, and so on. Pairs of
the same lengths go through the same lattice side by side.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Pair = tuple[str, tuple[str, ...]]
"""A word and its phones."""
Unit = tuple[str, tuple[str, ...]]
"""Letters, and the phones that they make."""
MOVES = ((1, 0), (1, 1), (1, 2), (2, 1))
"""Letters and phones of a unit: always a letter, at most two of either."""
ROUNDS = 12
LONGEST = 48
"""Letters of a pair that is cut: of longer ones the probability of a cut would be too small for a number."""

Edge = tuple[int, int, int, int]
"""From which letter and phone, how many letters and phones."""


@dataclass(frozen=True)
class Lattice:
    """All cuts of the pairs of one size."""

    members: list[int]
    letters: int
    phones: int
    units: dict[Edge, Tensor]
    """What an edge would be in each member, a number."""


def align(pairs: Sequence[Pair], rounds: int = ROUNDS) -> list[list[Unit] | None]:
    """The likeliest cut of each pair; None for one that is too long, or has more phones than its letters can make."""
    lattices, size = _numbered(_lattices(pairs))
    probability = torch.full((size,), 1 / max(size, 1), dtype=torch.float64)
    for _ in range(rounds):
        counts = torch.zeros_like(probability)
        for lattice in lattices:
            _expect(lattice, probability, counts)
        probability = counts / counts.sum()
    cuts: list[list[Unit] | None] = [None] * len(pairs)
    for lattice in lattices:
        for member, path in zip(lattice.members, _likeliest(lattice, probability.log()), strict=True):
            word, phones = pairs[member]
            cuts[member] = [(word[i : i + a], phones[j : j + b]) for i, j, a, b in path]
    return cuts


def _lattices(pairs: Sequence[Pair]) -> list[Lattice]:
    letters = {x: n for n, x in enumerate(sorted({x for word, _ in pairs for x in word}), 1)}
    sounds = {x: n for n, x in enumerate(sorted({x for _, phones in pairs for x in phones}), 1)}
    together = defaultdict(list)
    for number, (word, phones) in enumerate(pairs):
        together[len(word), len(phones)].append(number)
    found = []
    for (length, depth), members in together.items():
        edges = _edges(length, depth) if length <= LONGEST else []
        if not edges:
            continue
        spelt = torch.tensor([[letters[x] for x in pairs[n][0]] for n in members]).view(len(members), length)
        spoken = torch.tensor([[sounds[x] for x in pairs[n][1]] for n in members]).view(len(members), depth)
        units = {edge: _number(edge, spelt, spoken, len(letters) + 1, len(sounds) + 1) for edge in edges}
        found.append(Lattice(members, length, depth, units))
    return found


def _numbered(lattices: list[Lattice]) -> tuple[list[Lattice], int]:
    """Units numbered from 0 on, without gaps, and how many there are: most that could be never are."""
    if not lattices:
        return [], 0
    found = [units for lattice in lattices for units in lattice.units.values()]
    different, places = torch.cat(found).unique(return_inverse=True)
    parts = iter(places.split([len(units) for units in found]))
    return [replace(one, units={edge: next(parts) for edge in one.units}) for one in lattices], len(different)


def _number(edge: Edge, spelt: Tensor, spoken: Tensor, wide: int, deep: int) -> Tensor:
    """A number for the unit of each member: two digits for letters, two for phones, 0 where there is none."""
    i, j, a, b = edge
    nothing = torch.zeros(len(spelt), dtype=torch.long)
    first, second = (spelt[:, i + k] if k < a else nothing for k in (0, 1))
    third, fourth = (spoken[:, j + k] if k < b else nothing for k in (0, 1))
    return ((first * wide + second) * deep + third) * deep + fourth


def _edges(length: int, depth: int) -> list[Edge]:
    """The edges that lie on some path from (0, 0) to (length, depth), in the order of their starts."""
    cells = [(i, j) for i in range(length + 1) for j in range(depth + 1)]
    reached, leading = {(0, 0)}, {(length, depth)}
    for i, j in cells:
        if (i, j) in reached:
            reached.update((i + a, j + b) for a, b in MOVES)
    for i, j in reversed(cells):
        if (i, j) in leading:
            leading.update((i - a, j - b) for a, b in MOVES)
    return [(i, j, a, b) for i, j in cells for a, b in MOVES if (i, j) in reached and (i + a, j + b) in leading]


def _expect(lattice: Lattice, probability: Tensor, counts: Tensor) -> None:
    """Add how often each unit is expected in these pairs."""
    shape = (lattice.letters + 1, lattice.phones + 1, len(lattice.members))
    ahead, behind = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    ahead[0, 0] = behind[-1, -1] = 1.0
    for (i, j, a, b), units in lattice.units.items():
        ahead[i + a, j + b] += ahead[i, j] * probability[units]
    for (i, j, a, b), units in reversed(lattice.units.items()):
        behind[i, j] += behind[i + a, j + b] * probability[units]
    whole = ahead[-1, -1]
    share = torch.where(whole > 0, 1 / whole, 0.0)
    for (i, j, a, b), units in lattice.units.items():
        counts.index_add_(0, units, ahead[i, j] * behind[i + a, j + b] * probability[units] * share)


def _likeliest(lattice: Lattice, logs: Tensor) -> list[list[Edge]]:
    """The best path of each member."""
    shape = (lattice.letters + 1, lattice.phones + 1, len(lattice.members))
    best = torch.full(shape, -torch.inf, dtype=torch.float64)
    came = torch.zeros(shape, dtype=torch.long)
    best[0, 0] = 0.0
    edges = list(lattice.units)
    for number, ((i, j, a, b), units) in enumerate(lattice.units.items()):
        value = best[i, j] + logs[units]
        better = value > best[i + a, j + b]
        best[i + a, j + b] = torch.where(better, value, best[i + a, j + b])
        came[i + a, j + b] = torch.where(better, number, came[i + a, j + b])
    return [_walk_back(edges, steps) for steps in came.permute(2, 0, 1).tolist()]


def _walk_back(edges: list[Edge], came: list[list[int]]) -> list[Edge]:
    i, j, path = len(came) - 1, len(came[0]) - 1, []
    while i or j:
        path.append(edges[came[i][j]])
        i, j = path[-1][:2]
    return path[::-1]
