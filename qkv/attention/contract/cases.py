"""Random inputs for the identities: a case is some sizes and a seed, and always gives the same tensors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.attention.base import Attention
from qkv.cost import Shape

GATES = ("gate", "channel_gate")


@dataclass(frozen=True)
class Case:
    """Sizes of one call (distinct primes, so that no two axes can be confused) and its arguments."""

    batch: int = 2
    heads: int = 6
    key_heads: int = 3
    queries: int = 13
    keys: int = 13
    key_dim: int = 5
    value_dim: int = 7
    causal: bool = True
    masked: bool = False
    """Whether a padding mask hides about a third of the keys."""
    modifier: str | None = None
    """"bias", "decay", "gate" or "channel_gate", for kinds that accept it."""
    key_head_gate: bool = False
    """Whether a gate has one row per key head instead of one per query head."""
    max_rate: float = 1.0
    """Largest rate of a gate."""
    documents: bool = False
    """Whether about a fifth of the tokens start a document (causal cases only)."""
    max_score: float = 10.0
    """Largest absolute score."""
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @property
    def shape(self) -> Shape:
        """Shape of the same call, for `cost`."""
        element_bytes = torch.finfo(self.dtype).bits // 8
        sizes = self.batch, self.heads, self.queries, self.keys, self.key_dim, self.value_dim, self.key_heads
        gated = self.causal and self.modifier in GATES
        return Shape(
            *sizes,
            causal=self.causal,
            decay=self.causal and self.modifier == "decay",
            gate_heads=self.gate_heads if gated else 0,
            channel_gate=gated and self.modifier == "channel_gate",
            element_bytes=element_bytes,
        )

    def accepted_by(self, mechanism: Attention) -> "Case":
        """Return this case without a modifier that the mechanism does not accept."""
        causal_only = self.modifier != "bias" and not self.causal
        return replace(self, modifier=None) if causal_only or self.modifier not in mechanism.accepts else self

    @property
    def gate_heads(self) -> int:
        """Heads of a gate."""
        return self.key_heads if self.key_head_gate else self.heads


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    mask: Tensor | None = None
    bias: Tensor | None = None
    decay: Tensor | None = None
    beta: Tensor | None = None
    starts: Tensor | None = None

    @property
    def modifiers(self) -> dict[str, Any]:
        """Keyword arguments of `weights` and `forward`, as far as they are given."""
        names = ("causal", "mask", "bias", "decay", "beta", "starts")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    @property
    def differentiable(self) -> list[Tensor]:
        """Tensors whose gradients are compared."""
        return [x for x in (self.q, self.k, self.v, self.bias, self.decay, self.beta) if x is not None]

    @property
    def gated(self) -> bool:
        """Whether `decay` has a rate per token."""
        return self.decay is not None and self.decay.dim() > 1

    def rows(self, rows: Tensor) -> "Inputs":
        """Return these batch rows."""
        return self._map_tensors(lambda x: x[rows])

    def tokens(self, now: slice | Tensor) -> "Inputs":
        """Return these tokens; a bias keeps all its keys."""
        return self._map_tensors(lambda x: x[:, now] if x.dim() == 2 else x[:, :, now])

    def continue_with(self, other: "Inputs", position: int) -> "Inputs":
        """Return these tokens before `position`, and those of `other` from there on."""
        before, after = self.tokens(slice(position)), other.tokens(slice(position, None))
        changed: dict[str, Any] = {
            name: torch.cat((x, getattr(after, name)), 1 if x.dim() == 2 else 2) for name, x in before._sequences()
        }
        return replace(self, **changed)

    def hide(self, hidden: Tensor, content: float) -> "Inputs":
        """Return a copy that holds `content` at the hidden (batch, 1, keys, 1) tokens, as leaves of autograd."""
        changed: dict[str, Any] = {
            name: x.detach().masked_fill(hidden if x.dim() > 3 else hidden[..., 0], content).requires_grad_()
            for name, x in self._sequences()
            if name in ("k", "v", "decay", "beta")
        }
        return replace(self, **changed)

    def repeat_heads(self, heads: int) -> "Inputs":
        """Return a copy in which every tensor with fewer heads has all of them."""
        changed: dict[str, Any] = {
            name: x.repeat_interleave(heads // x.shape[1], 1) for name, x in self._sequences() if x.dim() > 2
        }
        return replace(self, **changed)

    def _sequences(self) -> list[tuple[str, Tensor]]:
        """Return the tensors that have a batch axis and one of tokens, with their names."""
        names = ("q", "k", "v", "mask", "beta", "starts", *(("decay",) if self.gated else ()))
        return [(name, x) for name in names if (x := getattr(self, name)) is not None]

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        changed: dict[str, Any] = {name: change(x) for name, x in self._sequences()}
        return replace(self, **changed)


def draw_inputs(case: Case, mechanism: Attention) -> Inputs:
    """Draw the tensors of this case that the mechanism accepts."""
    random = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    q = normal(case.batch, case.heads, case.queries, case.key_dim)
    k = normal(case.batch, case.key_heads, case.keys, case.key_dim)
    v = normal(case.batch, case.key_heads, case.keys, case.value_dim)
    if q.numel() and k.numel():
        largest = (q @ k.repeat_interleave(case.heads // case.key_heads, 1).mT).abs().max()
        q = q * case.max_score / largest * case.key_dim**0.5
    mask = torch.rand(case.batch, case.keys, generator=random) > 1 / 3
    bias = normal(1, case.heads, case.queries, case.keys)
    decay = torch.rand(case.heads, generator=random, dtype=torch.float64)
    if case.modifier in GATES:
        channels = (case.key_dim,) if case.modifier == "channel_gate" else ()
        sizes = case.batch, case.gate_heads, case.keys, *channels
        decay = torch.rand(sizes, generator=random, dtype=torch.float64) * case.max_rate
    beta = 2 * torch.rand(case.batch, case.key_heads, case.keys, generator=random, dtype=torch.float64)
    starts = torch.rand(case.batch, case.keys, generator=random) < 1 / 5
    modifier = case.accepted_by(mechanism).modifier
    q, k, v, bias, decay, beta = (x.to(case.dtype).requires_grad_() for x in (q, k, v, bias, decay, beta))
    return Inputs(
        q,
        k,
        v,
        causal=case.causal,
        mask=mask if case.masked else None,
        bias=bias if modifier == "bias" else None,
        decay=decay if modifier in ("decay", *GATES) else None,
        beta=beta if "beta" in mechanism.accepts else None,
        starts=starts if case.documents and case.causal else None,
    )
