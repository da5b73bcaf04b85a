"""Beam search: the best few paths, side by side.

    score = log_probability / length^length_power        END counts in the length

Each step takes the best `beams` continuations of all live paths of a source; those that are END
leave the beam. A wide beam finds what the model thinks best, which for a poor model is not what is
right: without a length power it comes to prefer short outputs.
"""

from dataclasses import dataclass

import torch

from qkv.decode.hypothesis import Hypothesis, conclude, normalize
from qkv.decode.limits import Limits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.stepper import Stepper, best_tokens
from qkv.decode.tree import Node, SearchTree, trace
from qkv.shapes import Mask


@dataclass(frozen=True)
class Begun:
    """What stands already when a search begins."""

    tokens: int = 0
    log_probability: float = 0.0


NOTHING = Begun()


def beam(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: Limits,
    *,
    beams: int,
    best: int = 1,
    length_power: float = 0.0,
) -> list[list[Hypothesis]]:
    """The `best` hypotheses of each input, best first (fewer if the tree has fewer paths).

    One that is cut at `max_length` counts like the others, by its score. Of equals the one found
    first wins, then the one from the better path, then the lower token id.
    """
    plan = _Plan(limits, beams, best, length_power)
    return [search.hypotheses() for search in _search(model, inputs, mask, plan)]


def beam_with_trees(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: Limits,
    *,
    beams: int,
    best: int = 1,
    length_power: float = 0.0,
    begun: Begun = NOTHING,
) -> tuple[list[list[Hypothesis]], list[SearchTree]]:
    """The same hypotheses as `beam`, and beside them all that it looked at, a tree for each input.

    Tokens that the model wrote before the search began (`begun`) count in every step, probability and length.
    """
    plan = _Plan(limits, beams, best, length_power, begun, record=True)
    searches = _search(model, inputs, mask, plan)
    return [search.hypotheses() for search in searches], [search.tree() for search in searches]


@dataclass(frozen=True)
class _Plan:
    limits: Limits
    beams: int
    best: int
    length_power: float
    begun: Begun = NOTHING
    record: bool = False
    """Whether the continuations that were not taken are remembered too."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1, got {self.beams}")
        if not 1 <= self.best <= self.beams:
            raise ValueError(f"best must be from 1 to beams={self.beams}, got {self.best}")
        if not self.length_power >= 0:
            raise ValueError(f"length_power must be 0 or more, got {self.length_power}")


class _Search:
    """The search for one source; it is over when nothing is live."""

    def __init__(self, plan: _Plan):
        self.plan = plan
        before = plan.begun
        root = Node(None, plan.limits.start, before.log_probability, before.tokens, kept=True, finished=False)
        self.nodes = [root]
        self.live = [0]
        self.ended: list[tuple[float, int]] = []  # (score, node), best first, never more than are asked for

    def advance(self, log_probabilities: list[list[float]], tokens: list[list[int]]) -> list[int]:
        """Go one step on, given the best continuations of each live path; returns, for each now live, its parent's."""
        continuations = [
            (self.nodes[node].log_probability + own, place, token)
            for place, node in enumerate(self.live)
            for own, token in zip(log_probabilities[place], tokens[place], strict=True)
            if own > -torch.inf
        ]
        continuations.sort(key=lambda continuation: -continuation[0])
        looked_at = continuations if self.plan.record else continuations[: self.plan.beams]
        step = self.nodes[self.live[0]].step + 1
        live, parents = [], []
        for rank, (log_probability, place, token) in enumerate(looked_at):
            kept = rank < self.plan.beams
            finished = kept and token == self.plan.limits.end
            self.nodes.append(Node(self.live[place], token, log_probability, step, kept, finished))
            if finished or (kept and step == self.plan.limits.max_length):
                self._end(len(self.nodes) - 1)
            elif kept:
                live.append(len(self.nodes) - 1)
                parents.append(place)
        self.live = [] if live and self._is_decided(live[0]) else live
        return parents if self.live else []

    def hypotheses(self) -> list[Hypothesis]:
        limits, power, before = self.plan.limits, self.plan.length_power, self.plan.begun.tokens
        return [
            conclude(trace(self.nodes, node), self.nodes[node].log_probability, limits.end, power, before)
            for _, node in self.ended
        ]

    def tree(self) -> SearchTree:
        return SearchTree(tuple(self.nodes), tuple(node for _, node in self.ended))

    def _end(self, place: int) -> None:
        node = self.nodes[place]
        self.ended.append((normalize(node.log_probability, node.step, self.plan.length_power), place))
        self.ended.sort(key=lambda ended: -ended[0])
        del self.ended[self.plan.best :]

    def _is_decided(self, first: int) -> bool:
        """Whether no path through this node, the best one live, can still come among the best.

        A log-probability only falls, and is divided by max_length^length_power at most.
        """
        hope = normalize(self.nodes[first].log_probability, self.plan.limits.max_length, self.plan.length_power)
        return len(self.ended) == self.plan.best and hope <= self.ended[-1][0]


def _search(model: Decodable[S], inputs: Inputs, mask: Mask | None, plan: _Plan) -> list[_Search]:
    """All sources side by side; the rows of the model are the live paths of those that are not over."""
    searches = [_Search(plan) for _ in range(inputs.shape[0])]
    active = searches
    parents = list(range(len(searches)))
    with torch.inference_mode():
        stepper = Stepper(model, inputs, mask, plan.limits)
        while active:
            last = [search.nodes[node].token for search in active for node in search.live]
            values, choices = best_tokens(stepper.step(parents, last), plan.beams)
            log_probabilities, tokens = values.tolist(), choices.tolist()
            parents, row = [], 0
            for search in active:
                rows = slice(row, row + len(search.live))
                parents += [row + place for place in search.advance(log_probabilities[rows], tokens[rows])]
                row = rows.stop
            active = [search for search in active if search.live]
    return searches
