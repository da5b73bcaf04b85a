"""Joint n-gram model over units of letters and phones, used to rescore the n-best lists of a network.

    p(word, phones) = sum over the segmentations of the pair of the product of p(unit | the units before it)

A network reads the whole word and can fail on a fragment that it has seen a hundred times; this model sees few units at
a time but memorizes how each is pronounced. The n-grams form a trie in breadth-first order, children adjacent and
sorted. A node stores its last unit, its probability, its back-off weight and its number of children.
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

from qkv.errors import QkvError
from qkv.pronunciation.alignment import MOVES, Unit
from qkv.storage import open_file, write_atomic

IntArray: TypeAlias = "array[int]"

FORMAT = 1
"""Version of the file format."""
START, END = 0, 1
"""Units without letters at the ends of every word."""
LOG_STEPS = 16
"""Log probabilities are quantized to steps of 1/16, at most 255."""
BEAM_WIDTH = 8
"""Contexts kept per lattice cell; with 4, log probabilities change by up to 0.2."""
UNSEEN_LOG_PROBABILITY = -16.0
"""Score of a unit never seen in training, used only if there is no other segmentation."""


@dataclass(frozen=True)
class JointNGram:
    """N-gram trie; node 0 is the root, node 1 + unit is the unigram of a unit."""

    units: dict[Unit, int]
    last: IntArray
    """Last unit of each node, 16 bits."""
    log_probability: bytes
    """-log p(last unit | the units before), in steps."""
    back_off: bytes
    """-log of the weight a node gives to its shorter context, in steps."""
    first: IntArray
    """First child of each node, plus one final entry: children end where those of the next node begin."""
    shorter: IntArray
    """Node without the first unit."""
    context: IntArray
    """Longest suffix of the node that has children: the context of the next unit."""
    weight: float = 0.0
    """Weight of this model's log probability when it is added to that of a network."""
    sharpness: float = 1.0
    """Factor of that sum, which calibrates the probabilities."""

    def score(self, word: str, phones: Sequence[str]) -> float:
        """Return log p(word, phones), summed over the likeliest segmentations; -inf without any (letter names)."""
        sounds = tuple(phones)
        found = self._sum_over_segmentations(word, sounds, unseen=False)
        return found if found > -inf else self._sum_over_segmentations(word, sounds, unseen=True)

    def advance(self, node: int, unit: int) -> tuple[float, int]:
        """Return log p(unit | node) and the context after it."""
        steps, first, last = 0, self.first, self.last
        while True:
            end = first[node + 1]
            child = bisect_left(last, unit, first[node], end)
            if child < end and last[child] == unit:
                return -(steps + self.log_probability[child]) / LOG_STEPS, self.context[child]
            steps += self.back_off[node]
            node = self.shorter[node]

    def _sum_over_segmentations(self, word: str, phones: tuple[str, ...], *, unseen: bool) -> float:
        """Return the log sum; cell [i][j] holds the log probability of each context after i letters and j phones."""
        length, depth = len(word), len(phones)
        cells: list[list[dict[int, float]]] = [[{} for _ in range(depth + 1)] for _ in range(length + 1)]
        cells[0][0][self.context[1 + START]] = 0.0
        for i in range(length):  # every unit has a letter, so no unit starts in the last row
            for j in range(depth + 1):
                states = sorted(cells[i][j].items(), key=lambda state: -state[1])[:BEAM_WIDTH]
                if not states:
                    continue
                for a, b in MOVES:
                    if i + a > length or j + b > depth:
                        continue
                    unit = self.units.get((word[i : i + a], phones[j : j + b]))
                    if unit is not None or unseen:
                        self._extend(states, unit, cells[i + a][j + b])
        total = -inf
        for node, value in cells[length][depth].items():
            total = _log_add(total, value + self.advance(node, END)[0])
        return total

    def _extend(self, states: list[tuple[int, float]], unit: int | None, there: dict[int, float]) -> None:
        for node, value in states:
            cost, after = (UNSEEN_LOG_PROBABILITY, 0) if unit is None else self.advance(node, unit)
            there[after] = _log_add(there.get(after, -inf), value + cost)

    def write(self, path: Path) -> None:
        """Write one compressed file, atomically."""
        header = {
            "format": FORMAT,
            "nodes": len(self.last),
            "weight": self.weight,
            "sharpness": self.sharpness,
            "units": list(self.units),
        }
        children = array("H", (after - before for before, after in pairwise(self.first)))
        parts = (json.dumps(header).encode(), b"\n", _to_bytes(self.last), self.log_probability, self.back_off)
        write_atomic(path, zlib.compress(b"".join((*parts, _to_bytes(children))), 9))

    @classmethod
    def read(cls, path: Path) -> "JointNGram":
        """Read a file by `write`; raise if it is damaged."""
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
            return replace(build_trie(units, last, *steps, children), weight=weight, sharpness=sharpness)
        except (zlib.error, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
            raise QkvError(f"the joint model is damaged or from another version: {error}", str(path)) from error


def build_trie(
    units: Sequence[Unit], last: IntArray, log_probability: bytes, back_off: bytes, children: IntArray
) -> JointNGram:
    """Build the model from the stored arrays: last unit, log probability, back-off and number of children per node."""
    counts, unit = (torch.frombuffer(x, dtype=torch.uint16).long() for x in (children, last))
    first = torch.cat([torch.ones(1, dtype=torch.long), 1 + counts.cumsum(0)])
    if int(first[-1]) != len(counts):
        raise ValueError(f"{len(counts)} nodes have {int(first[-1]) - 1} children")
    width = len(units) + 2
    if int(counts[0]) != width or not torch.equal(unit[1 : width + 1], torch.arange(width)):
        raise ValueError(f"there must be a node for each of {width} units")
    parent = torch.arange(len(counts)).repeat_interleave(counts)  # parents of nodes 1, 2, ...
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
    ids = {one: index for index, one in enumerate(units, 2)}
    children_of, suffix_of, context_of = map(_to_array, (first, shorter, context))
    return JointNGram(ids, last, log_probability, back_off, children_of, suffix_of, context_of)


def _to_array(x: Tensor) -> IntArray:
    """Return an array, whose elements Python reads ten times as fast as those of a tensor."""
    values = array("i", bytes(4 * len(x)))
    torch.frombuffer(values, dtype=torch.int32).copy_(x)
    return values


def _to_bytes(numbers: IntArray) -> bytes:
    """Return the elements as little-endian bytes."""
    own = array(numbers.typecode, numbers)
    if sys.byteorder == "big":
        own.byteswap()
    return own.tobytes()


def _from_bytes(data: bytes) -> IntArray:
    numbers = array("H", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _log_add(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    if a < b:
        a, b = b, a
    return a if b == -inf else a + log1p(exp(b - a))
