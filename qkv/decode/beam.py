"""Beam search: the most probable paths, extended in parallel.

    score = log_probability / length^length_penalty        END counts in the length

Each step keeps the best `beams` continuations of all live paths of a source; those that end in END leave the beam. A
wide beam finds what the model prefers, which for a poor model is not what is right: with a length penalty of 0 it comes
to prefer short outputs.
"""

from dataclasses import dataclass

import torch

from qkv.decode.hypothesis import Hypothesis, length_normalize, make_hypothesis
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.stepper import Stepper, best_tokens
from qkv.decode.tree import Node, SearchTree, trace
from qkv.shapes import Mask


@dataclass(frozen=True)
class DecodingPrefix:
    """Number and log-probability of the tokens written before a search starts."""

    tokens: int = 0
    log_probability: float = 0.0


EMPTY_PREFIX = DecodingPrefix()


def beam(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: SearchLimits,
    *,
    beams: int,
    n_best: int = 1,
    length_penalty: float = 0.0,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each input, best first (fewer if the tree has fewer paths).

    A hypothesis truncated at `max_length` is ranked by its score like the others. Ties go to the one found first, then
    to the one from the better path, then to the lower token id.
    """
    settings = _BeamSettings(limits, beams, n_best, length_penalty)
    return [search.hypotheses() for search in _search(model, inputs, mask, settings)]


def beam_with_trees(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: SearchLimits,
    *,
    beams: int,
    n_best: int = 1,
    length_penalty: float = 0.0,
    prefix: DecodingPrefix = EMPTY_PREFIX,
) -> tuple[list[list[Hypothesis]], list[SearchTree]]:
    """Return the hypotheses of `beam`, and for each input the tree of all continuations considered.

    The tokens of `prefix` count in every step, log-probability and length.
    """
    settings = _BeamSettings(limits, beams, n_best, length_penalty, prefix, record=True)
    searches = _search(model, inputs, mask, settings)
    return [search.hypotheses() for search in searches], [search.tree() for search in searches]


@dataclass(frozen=True)
class _BeamSettings:
    """Options of a beam search, checked."""

    limits: SearchLimits
    beams: int
    n_best: int
    length_penalty: float
    prefix: DecodingPrefix = EMPTY_PREFIX
    record: bool = False
    """Whether rejected continuations are recorded too."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1, got {self.beams}")
        if not 1 <= self.n_best <= self.beams:
            raise ValueError(f"n_best must be from 1 to beams={self.beams}, got {self.n_best}")
        if not self.length_penalty >= 0:
            raise ValueError(f"length_penalty must be at least 0, got {self.length_penalty}")


class _Search:
    """Search for one source; it is finished when no path is live."""

    def __init__(self, settings: _BeamSettings):
        self.settings = settings
        prefix = settings.prefix
        root = Node(None, settings.limits.start, prefix.log_probability, prefix.tokens, kept=True, finished=False)
        self.nodes = [root]
        self.live = [0]
        self.ended: list[tuple[float, int]] = []  # (score, node), best first, at most n_best

    def advance(self, log_probabilities: list[list[float]], tokens: list[list[int]]) -> list[int]:
        """Take one step, given the best continuations of each live path; return the parent of each new live path."""
        continuations = [
            (self.nodes[node].log_probability + own, parent, token)
            for parent, node in enumerate(self.live)
            for own, token in zip(log_probabilities[parent], tokens[parent], strict=True)
            if own > -torch.inf
        ]
        continuations.sort(key=lambda continuation: -continuation[0])
        considered = continuations if self.settings.record else continuations[: self.settings.beams]
        step = self.nodes[self.live[0]].step + 1
        live, parents = [], []
        for rank, (log_probability, parent, token) in enumerate(considered):
            kept = rank < self.settings.beams
            finished = kept and token == self.settings.limits.end
            self.nodes.append(Node(self.live[parent], token, log_probability, step, kept, finished))
            if finished or (kept and step == self.settings.limits.max_length):
                self._finish(len(self.nodes) - 1)
            elif kept:
                live.append(len(self.nodes) - 1)
                parents.append(parent)
        self.live = [] if live and self._is_decided(live[0]) else live
        return parents if self.live else []

    def hypotheses(self) -> list[Hypothesis]:
        """Return the finished hypotheses, best first."""
        settings = self.settings
        return [
            make_hypothesis(
                trace(self.nodes, node),
                self.nodes[node].log_probability,
                settings.limits.end,
                settings.length_penalty,
                settings.prefix.tokens,
            )
            for _, node in self.ended
        ]

    def tree(self) -> SearchTree:
        """Return all recorded nodes."""
        return SearchTree(tuple(self.nodes), tuple(node for _, node in self.ended))

    def _finish(self, index: int) -> None:
        node = self.nodes[index]
        self.ended.append((length_normalize(node.log_probability, node.step, self.settings.length_penalty), index))
        self.ended.sort(key=lambda ended: -ended[0])
        del self.ended[self.settings.n_best :]

    def _is_decided(self, first: int) -> bool:
        """Return whether the n-best list is final. `first` is the unfinished path with the highest log-probability.

        Its score has an upper bound: a log-probability only decreases, and is divided by at most
        max_length^length_penalty.
        """
        bound = length_normalize(
            self.nodes[first].log_probability, self.settings.limits.max_length, self.settings.length_penalty
        )
        return len(self.ended) == self.settings.n_best and bound <= self.ended[-1][0]


def _search(model: Decodable[S], inputs: Inputs, mask: Mask | None, settings: _BeamSettings) -> list[_Search]:
    """Search all sources in parallel; the rows of the model are the live paths of unfinished searches."""
    searches = [_Search(settings) for _ in range(inputs.shape[0])]
    active = searches
    parents = list(range(len(searches)))
    with torch.inference_mode():
        stepper = Stepper(model, inputs, mask, settings.limits)
        while active:
            last = [search.nodes[node].token for search in active for node in search.live]
            values, choices = best_tokens(stepper.step(parents, last), settings.beams)
            log_probabilities, tokens = values.tolist(), choices.tolist()
            parents, row = [], 0
            for search in active:
                rows = slice(row, row + len(search.live))
                parents += [row + parent for parent in search.advance(log_probabilities[rows], tokens[rows])]
                row = rows.stop
            active = [search for search in active if search.live]
    return searches
