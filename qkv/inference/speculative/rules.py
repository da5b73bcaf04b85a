"""Rules of speculative decoding: which proposed tokens are kept, and what comes instead of the first that is not.

    greedy     keep d while d = argmax p; then argmax p
    sampling   keep d, drawn from q, with probability min(1, p(d) / q(d)); else draw from max(p - q, 0)

p is the distribution of the model, q that of the draft, both after temperature, top_k and top_p. Summed over d the
second rule gives min(p, q) + max(p - q, 0) = p, whatever q is. Paper: https://arxiv.org/abs/2211.17192.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.greedy import argmax_token
from qkv.decode.sample import Sampler, draw_tokens
from qkv.decode.single_path import TokenChooser
from qkv.inference.speculative.draft import Proposal


class Rule(ABC):
    """How a search picks tokens and judges proposed ones; every draw depends on (seed, position) alone."""

    @abstractmethod
    def pick(self, log_probabilities: Tensor, position: int) -> tuple[int, Tensor | None]:
        """Return the token that a draft with these log-probabilities [vocabulary] proposes, and its weights."""

    @abstractmethod
    def tokens(self, log_probabilities: Tensor, proposal: Proposal, position: int) -> Iterator[tuple[int, bool]]:
        """Yield the tokens from `position` on, and whether each was proposed: the kept ones, then one more.

        `log_probabilities` (tokens + 1, vocabulary) are the model's after each; a row of NaN raises when it is reached.
        """


class GreedyRule(Rule):
    """Always the most probable token; ties go to the lowest id."""

    def pick(self, log_probabilities: Tensor, position: int) -> tuple[int, Tensor | None]:
        """Return the most probable token."""
        return int(log_probabilities.argmax()), None

    def tokens(self, log_probabilities: Tensor, proposal: Proposal, position: int) -> Iterator[tuple[int, bool]]:
        """Yield most probable tokens, up to the first that differs from the proposed one."""
        best = argmax_token(log_probabilities, [], position).tolist()
        broken = log_probabilities.isnan().any(-1).tolist()
        for row, token in enumerate(best):
            require_valid("model.extend", broken=broken[row])
            kept = row < len(proposal.tokens) and token == proposal.tokens[row]
            yield token, kept
            if not kept:
                return


@dataclass(frozen=True)
class SamplingRule(Rule):
    """Tokens drawn by a sampler."""

    sampler: Sampler

    def pick(self, log_probabilities: Tensor, position: int) -> tuple[int, Tensor | None]:
        """Return a drawn token, and the weights it was drawn from."""
        weights = self.sampler.weights(log_probabilities[None])
        return int(draw_tokens(weights, self._uniform("draft", position, weights))), weights[0]

    def tokens(self, log_probabilities: Tensor, proposal: Proposal, position: int) -> Iterator[tuple[int, bool]]:
        """Yield the proposed tokens that are kept, then one from what the draft gives too little, or from p."""
        for row, log_probability in enumerate(log_probabilities):
            require_valid("model.extend", broken=bool(log_probability.isnan().any()))
            p = _normalize(self.sampler.weights(log_probability[None])[0])
            if row == len(proposal.tokens):
                yield self._draw(p, position + row), False
                return
            token, q = proposal.tokens[row], _proposed(proposal, row, p)
            if float(self._uniform("accept", position + row, p)) * float(q[token]) >= float(p[token]):
                rest = (p - q).clamp(min=0)
                # p = q up to rounding leaves no rest: then any draw from p will do
                yield self._draw(rest if bool(rest.any()) else p, position + row), False
                return
            yield token, True

    def _draw(self, weights: Tensor, position: int) -> int:
        return int(draw_tokens(weights[None], self._uniform("sample", position, weights)))

    def _uniform(self, purpose: str, position: int, like: Tensor) -> Tensor:
        return self.sampler.uniforms(purpose, [0], position, like.device)


def make_rule(choose: TokenChooser) -> Rule:
    """Return the rule of `argmax_token` or of a sampler; others hide their distribution."""
    if choose is argmax_token:
        return GreedyRule()
    if not isinstance(choose, Sampler):
        raise ValueError(
            f"choose must be argmax_token or a sampler, whose distribution speculative decoding knows, got {choose!r}"
        )
    return SamplingRule(choose)


def require_valid(source: str, *, broken: bool) -> None:
    """Raise for logits that give no distribution."""
    if broken:
        raise ValueError(f"{source} returned invalid logits: NaN, +inf, or -inf for every allowed token")


def _proposed(proposal: Proposal, row: int, p: Tensor) -> Tensor:
    """Return the distribution that a proposed token was drawn from; raise for one it cannot come from."""
    token, weights = proposal.tokens[row], proposal.weights[row]
    if weights is None:
        return torch.zeros_like(p).index_fill(0, torch.tensor(token, device=p.device), 1)
    if weights.shape != p.shape:
        raise ValueError(f"the draft has a vocabulary of {len(weights)} tokens, the model one of {len(p)}")
    if not float(weights[token]) > 0:
        raise ValueError(f"the draft proposed token {token}, which its own weights give probability 0")
    return _normalize(weights.to(p))


def _normalize(weights: Tensor) -> Tensor:
    return weights / weights.sum()
