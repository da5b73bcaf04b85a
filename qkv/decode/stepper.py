"""One decoding step, shared by all searches: reorder the state, run the model, mask and normalize the logits."""

import math
from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from qkv.cancellation import check_canceled
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, Logits, S
from qkv.shapes import Mask

INVALID_LOGITS = "NaN, +inf, or -inf for every allowed token"


class Stepper(Generic[S]):
    """The state of a model, with its rows aligned to those of a search."""

    def __init__(self, model: Decodable[S], inputs: Inputs, mask: Mask | None, limits: SearchLimits):
        _check_inputs(inputs, mask)
        self.model = model
        self.limits = limits
        self.device = inputs.device
        self.rows = inputs.shape[0]
        self.state = model.start(inputs, mask)
        self.forbidden = torch.tensor(limits.forbidden, dtype=torch.int64, device=self.device)

    def step(self, parents: Sequence[int], tokens: Sequence[int] | Tensor) -> Logits:
        """Return log p(next | path) for each row, in float32 or float64.

        Row i continues row `parents[i]` of the previous step with `tokens[i]`. Forbidden tokens are masked before
        normalizing, so the others sum to 1.
        """
        check_canceled()
        if list(parents) != list(range(self.rows)):
            self.state = self.state.select(torch.tensor(parents, dtype=torch.int64, device=self.device))
            self.rows = len(parents)
        if not isinstance(tokens, Tensor):
            tokens = torch.tensor(tokens, dtype=torch.int64, device=self.device)
        logits, self.state = self.model.step(tokens, self.state)
        self._check_logits(logits)
        result = normalize(logits, self.forbidden)
        broken = len(broken_rows(result))
        if broken:
            raise ValueError(f"model.step returned invalid logits for {broken} of {self.rows} rows: {INVALID_LOGITS}")
        return result

    def _check_logits(self, logits: Tensor) -> None:
        check_logits_shape(logits, self.rows)
        highest = max(self.limits.end, *self.limits.forbidden, 0)
        if logits.shape[1] <= highest:
            raise ValueError(
                f"limits has token {highest}, but model.step returned logits of {logits.shape[1]} tokens only"
            )


def normalize(logits: Logits, forbidden: Tensor) -> Logits:
    """Return log-probabilities in float32 or float64; forbidden tokens are masked first, so the others sum to 1."""
    allowed = logits.index_fill(-1, forbidden, -torch.inf)
    return (allowed if allowed.dtype == torch.float64 else allowed.float()).log_softmax(-1)


def broken_rows(log_probabilities: Logits) -> list[int]:
    """Return the rows that no token can be chosen from, because of their logits; see INVALID_LOGITS."""
    if not math.isnan(log_probabilities.sum().item()):  # log-probabilities are never +inf, so only NaN gives NaN
        return []  # with one sync
    broken: list[int] = log_probabilities.isnan().any(-1).nonzero()[:, 0].tolist()
    return broken


def check_logits_shape(logits: Tensor, rows: int) -> None:
    """Raise unless there is one row of logits for each row of the state."""
    if logits.dim() != 2 or logits.shape[0] != rows:
        raise ValueError(
            f"model.step must return logits of shape (rows, vocabulary) = ({rows}, ...), got {tuple(logits.shape)}"
        )


def best_tokens(log_probabilities: Logits, count: int) -> tuple[Tensor, Tensor]:
    """Return the values and ids of the `count` most probable tokens of each row, best first; ties by lowest id.

    `topk` leaves the order of ties open, and a stable sort is thirty times slower for thousands of tokens, so the sort
    runs only where there are ties.
    """
    count = min(count, log_probabilities.shape[-1])
    if count == 1:
        values, tokens = log_probabilities.max(-1, keepdim=True)  # max returns the first of equal values
        return values, tokens
    if count < log_probabilities.shape[-1]:
        values, tokens = log_probabilities.topk(count + 1)
        if (values[:, :-1] > values[:, 1:]).all():
            return values[:, :-1], tokens[:, :-1]
    values, tokens = log_probabilities.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], tokens[:, :count]


def _check_inputs(inputs: Tensor, mask: Tensor | None) -> None:
    if inputs.dtype != torch.int64 or inputs.dim() != 2:
        raise ValueError(
            f"inputs must be an int64 tensor of shape (batch, time), got {inputs.dtype} of shape {tuple(inputs.shape)}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != inputs.shape):
        raise ValueError(
            f"mask must be a bool tensor of the shape of inputs, {tuple(inputs.shape)} (False on padding), "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
