"""How likely letters and phones are together, as units that follow one another: an n-gram model, to check answers with.

    p(word, phones) = sum over the cuts of the pair of the product of p(unit | the units before it)

A network sees the whole word and can be wrong about a piece that it has seen a hundred times; this one sees few units
at a time and knows by heart how each was said. The n-grams are a trie, breadth first, the children of a node side by
side and ordered: what is kept of a node is its last unit, its probability, its back-off and how many children it has.
"""

import json
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, log1p
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from qkv.pronunciation.alignment import MOVES, Unit
from qkv.storage import FORMAT, QkvError, open_file, write_atomic

Numbers: TypeAlias = "array[int]"

START, END = 0, 1
"""Units of no letters, around every word."""
STEPS = 16
"""Logarithms are kept in steps of 1/16, 255 of them."""
KEPT = 8
"""Ways to come to a place in the lattice that are followed: with 4, sums move by up to 0.2."""
UNSEEN = -16.0
"""What a unit costs that was never seen, taken where there is no other way."""


@dataclass(frozen=True)
class Joint:
    """The n-grams; node 0 is the empty one, and node 1 + unit that of a unit alone."""

    units: dict[Unit, int]
    last: Numbers
    """The last unit of each node, in 16 bits."""
    log_probability: bytes
    """Of the last unit after those before, in steps, negative."""
    back_off: bytes
    """Of what a node leaves to the shorter one, in steps, negative."""
    first: Numbers
    """The first child of each node, and one more number: children go up to that of the next."""
    shorter: Numbers
    """The node without the first unit."""
    context: Numbers
    """The longest end of the node that anything follows: what counts for the next unit."""
    weight: float = 0.0
    """What its logarithms are multiplied by when they are added to a network's."""
    sharpness: float = 1.0
    """What the sum of both is multiplied by, to be a belief that can be relied on."""

    def score(self, word: str, phones: Sequence[str]) -> float:
        """log p(word, phones), the likeliest cuts; -inf for what cannot be cut, as the name of a letter can not."""
        sounds = tuple(phones)
        found = self._sum(word, sounds, unseen=False)
        return found if found > -inf else self._sum(word, sounds, unseen=True)

    def follow(self, node: int, unit: int) -> tuple[float, int]:
        """log p(unit | node), and the context after it."""
        steps, first, last = 0, self.first, self.last
        while True:
            end = first[node + 1]
            place = bisect_left(last, unit, first[node], end)
            if place < end and last[place] == unit:
                return -(steps + self.log_probability[place]) / STEPS, self.context[place]
            steps += self.back_off[node]
            node = self.shorter[node]

    def _sum(self, word: str, phones: tuple[str, ...], *, unseen: bool) -> float:
        """Through cells of letters and phones done, each with log-probabilities by context."""
        length, depth = len(word), len(phones)
        cells: list[list[dict[int, float]]] = [[{} for _ in range(depth + 1)] for _ in range(length + 1)]
        cells[0][0][self.context[1 + START]] = 0.0
        for i in range(length):  # every unit has a letter, so the last row leads nowhere
            for j in range(depth + 1):
                states = sorted(cells[i][j].items(), key=lambda state: -state[1])[:KEPT]
                if not states:
                    continue
                for a, b in MOVES:
                    if i + a > length or j + b > depth:
                        continue
                    unit = self.units.get((word[i : i + a], phones[j : j + b]))
                    if unit is not None or unseen:
                        self._advance(states, unit, cells[i + a][j + b])
        total = -inf
        for node, value in cells[length][depth].items():
            total = _add(total, value + self.follow(node, END)[0])
        return total

    def _advance(self, states: list[tuple[int, float]], unit: int | None, there: dict[int, float]) -> None:
        for node, value in states:
            cost, after = (UNSEEN, 0) if unit is None else self.follow(node, unit)
            there[after] = _add(there.get(after, -inf), value + cost)

    def write(self, path: Path) -> None:
        """One compressed file, whole or not at all."""
        header = {
            "format": FORMAT,
            "nodes": len(self.last),
            "weight": self.weight,
            "sharpness": self.sharpness,
            "units": list(self.units),
        }
        children = array("H", (after - before for before, after in pairwise(self.first)))
        parts = (json.dumps(header).encode(), b"\n", _bytes(self.last), self.log_probability, self.back_off)
        write_atomic(path, zlib.compress(b"".join((*parts, _bytes(children))), 9))

    @classmethod
    def read(cls, path: Path) -> "Joint":
        """The one that was written there; a damaged file is refused."""
        with open_file(path) as file:
            packed = file.read()
        try:
            head, _, body = zlib.decompress(packed).partition(b"\n")
            header = json.loads(head)
            nodes = header["nodes"]
            if header["format"] != FORMAT or len(body) != 6 * nodes:
                raise ValueError(f"format {header['format']}, {len(body)} bytes for {nodes} nodes")
            last, children = (_from_bytes(body[start : start + 2 * nodes]) for start in (0, 4 * nodes))
            steps = body[2 * nodes : 3 * nodes], body[3 * nodes : 4 * nodes]
            units = [(letters, tuple(phones)) for letters, phones in header["units"]]
            weight, sharpness = float(header["weight"]), float(header["sharpness"])
            if not (0 <= weight < inf and 0 < sharpness < inf):
                raise ValueError(f"weight {weight} and sharpness {sharpness}")
            return replace(build(units, last, *steps, children), weight=weight, sharpness=sharpness)
        except (zlib.error, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
            raise QkvError(f"the joint model is damaged or from another version: {error}", str(path)) from error


def build(units: Sequence[Unit], last: Numbers, log_probability: bytes, back_off: bytes, children: Numbers) -> Joint:
    """All of it from what is kept: of each node its unit, its two logarithms, and how many children it has."""
    counts, unit = (torch.frombuffer(x, dtype=torch.uint16).long() for x in (children, last))
    first = torch.cat([torch.ones(1, dtype=torch.long), 1 + counts.cumsum(0)])
    if int(first[-1]) != len(counts):
        raise ValueError(f"{len(counts)} nodes have {int(first[-1]) - 1} children")
    width = len(units) + 2
    if int(counts[0]) != width or not torch.equal(unit[1 : width + 1], torch.arange(width)):
        raise ValueError(f"there must be a node for each of {width} units")
    parent = torch.arange(len(counts)).repeat_interleave(counts)  # of nodes 1, 2, ...
    keys = parent * width + unit[1:]
    shorter, context = torch.zeros_like(unit), torch.arange(len(unit))
    level = slice(1, int(first[1]))
    while level.start < level.stop:
        own = torch.arange(level.start, level.stop)
        above = parent[own - 1]
        found = 1 + torch.searchsorted(keys, shorter[above] * width + unit[own])
        shorter[own] = torch.where(above > 0, found, 0)
        context[own] = torch.where(counts[own] > 0, own, context[shorter[own]])
        level = slice(level.stop, int(first[level.stop]))
    numbers = {one: place for place, one in enumerate(units, 2)}
    begins, shorts, contexts = map(_numbers, (first, shorter, context))
    return Joint(numbers, last, log_probability, back_off, begins, shorts, contexts)


def _numbers(x: Tensor) -> Numbers:
    """As an array, which Python reads ten times as fast as a tensor."""
    found = array("i", bytes(4 * len(x)))
    torch.frombuffer(found, dtype=torch.int32).copy_(x)
    return found


def _bytes(numbers: Numbers) -> bytes:
    """The lowest byte first, whatever the machine."""
    own = array(numbers.typecode, numbers)
    if sys.byteorder == "big":
        own.byteswap()
    return own.tobytes()


def _from_bytes(data: bytes) -> Numbers:
    numbers = array("H", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _add(a: float, b: float) -> float:
    """log(e^a + e^b)"""
    if a < b:
        a, b = b, a
    return a if b == -inf else a + log1p(exp(b - a))
