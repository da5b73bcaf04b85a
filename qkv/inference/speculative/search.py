"""The search: propose, verify in one call, take back what was wrong.

    state after n tokens, and the last token t
    draft proposes d1 .. dk
    logits, state = model.extend([t d1 .. dk])         one call instead of k + 1
    the first a are kept, one token comes instead of the next, or after all
    state = state.rewind(k - a)

A KV cache forgets its last keys; a sum goes back to the state before the call and adds the tokens that stay
(`qkv.layers.undo_log`). No token passes through the model twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.cancellation import check_canceled
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Inputs
from qkv.decode.single_path import TokenChooser
from qkv.inference.speculative.draft import Draft, Proposal
from qkv.inference.speculative.rules import Rule, make_rule, require_valid

DEFAULT_PROPOSED = 4


@dataclass
class SpeculationStatistics:
    """What a draft was worth."""

    steps: int = 0
    """Calls of the model."""
    proposed: int = 0
    """Tokens that the draft proposed."""
    accepted: int = 0
    """Proposed tokens that were kept."""
    tokens: int = 0
    """Tokens of the output."""

    @property
    def accepted_per_step(self) -> float:
        """Mean number of proposed tokens that a call of the model kept."""
        return self.accepted / max(self.steps, 1)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens that a call of the model gave; 1 without a draft."""
        return self.tokens / max(self.steps, 1)


def speculative_stream(
    model: Any,
    inputs: Inputs,
    limits: SearchLimits,
    choose: TokenChooser,
    draft: Draft,
    *,
    proposed: int = DEFAULT_PROPOSED,
    statistics: SpeculationStatistics | None = None,
) -> Iterator[tuple[int, float]]:
    """Yield each token, END included, with its log-probability, as `qkv.decode.stream` does; `inputs` is one row.

    With `argmax_token` the tokens are those of `stream`; with a sampler they have the same distribution, but are other
    draws. The model needs `start` and `extend`, and a state `with_undo_log`, as `Decoder` has. `proposed` is the number
    of tokens to propose at a time; `statistics` is counted up.
    """
    if inputs.shape[0] != 1:
        raise ValueError(f"inputs must be one row, got {inputs.shape[0]}")
    if not hasattr(model, "extend"):
        raise ValueError(f"model must have extend, as Decoder has, to verify a draft, got {type(model).__name__}")
    if proposed < 1:
        raise ValueError(f"proposed must be at least 1, got {proposed}")
    counts = SpeculationStatistics() if statistics is None else statistics
    verifier = _Verifier(model, inputs, limits, make_rule(choose), draft)
    position = 0
    while position < limits.max_length:
        check_canceled()
        with torch.inference_mode():  # not around the yield: the caller may need gradients
            proposal = verifier.propose(min(proposed, limits.max_length - position - 1), position)
            found = verifier.verify(proposal, position)
        counts.steps += 1
        counts.proposed += len(proposal.tokens)
        counts.accepted += sum(kept for _, kept, _ in found)
        for token, _, log_probability in found:
            counts.tokens += 1
            yield token, log_probability
            if token == limits.end:
                return
        position += len(found)


class _Verifier:
    """The model's state after all tokens but the last, and the tokens."""

    def __init__(self, model: Any, inputs: Tensor, limits: SearchLimits, rule: Rule, draft: Draft):
        self.model, self.limits, self.rule, self.draft = model, limits, rule, draft
        self.device = inputs.device
        self.forbidden = torch.tensor(limits.forbidden, dtype=torch.int64, device=self.device)
        self.ids = [*inputs[0].tolist(), limits.start]
        self.vocabulary: int | None = None  # known after the first call
        self.longest: int | None = getattr(getattr(model, "config", None), "max_length", None)
        with torch.inference_mode():
            self.state = model.start(inputs, None).with_undo_log()

    def propose(self, count: int, position: int) -> Proposal:
        """Return up to `count` proposed tokens, as many as the model has room for; none before the first call."""
        if self.longest is not None:
            count = min(count, self.longest - len(self.ids))
        if count < 1 or self.vocabulary is None:
            return Proposal()

        def pick(logits: Tensor, number: int) -> tuple[int, Tensor | None]:
            log_probabilities = self._normalize(logits.to(self.device))
            require_valid("the draft", broken=bool(log_probabilities.isnan().any()))
            return self.rule.pick(log_probabilities, position + number)

        proposal = self.draft.propose(self.ids, count, pick).until(self.limits.end)
        wrong = [token for token in proposal.tokens if not 0 <= token < (self.vocabulary or 0)]
        if wrong or len(proposal.tokens) > count:
            raise ValueError(
                f"the draft must propose up to {count} tokens from 0 to {self.vocabulary - 1}, "
                f"got {list(proposal.tokens)}"
            )
        return proposal

    def verify(self, proposal: Proposal, position: int) -> list[tuple[int, bool, float]]:
        """Return the next tokens, whether each was proposed, and their log-probabilities; advance the state."""
        tokens = torch.tensor([[self.ids[-1], *proposal.tokens]], dtype=torch.int64, device=self.device)
        logits, state = self.model.extend(tokens, self.state)
        self._check_logits(logits, tokens.shape[1])
        log_probabilities = self._normalize(logits[0])
        found: list[tuple[int, bool, float]] = []
        for token, kept in self.rule.tokens(log_probabilities, proposal, position):
            found.append((token, kept, float(log_probabilities[len(found), token])))
            if token == self.limits.end:
                break
        self.state = state.rewind(len(proposal.tokens) - sum(kept for _, kept, _ in found))
        self.ids += [token for token, _, _ in found]
        return found

    def _normalize(self, logits: Tensor) -> Tensor:
        """Return log p(token) without the forbidden ones, in float32 or float64; NaN for broken logits."""
        allowed = logits.index_fill(-1, self.forbidden, -torch.inf)
        return (allowed if allowed.dtype == torch.float64 else allowed.float()).log_softmax(-1)

    def _check_logits(self, logits: Tensor, tokens: int) -> None:
        if logits.dim() != 3 or logits.shape[:2] != (1, tokens):
            raise ValueError(
                f"model.extend must return logits of shape (rows, time, vocabulary) = (1, {tokens}, ...), "
                f"got {tuple(logits.shape)}"
            )
        self.vocabulary = logits.shape[2]
        highest = max(self.limits.end, *self.limits.forbidden, 0)
        if self.vocabulary <= highest:
            raise ValueError(
                f"limits has token {highest}, but model.extend returned logits of {self.vocabulary} tokens only"
            )
