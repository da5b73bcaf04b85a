"""Random inputs for the identities: a case is some sizes and a seed, and always gives the same tensors."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.attention.base import Attention
from qkv.cost import Shape


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
    """"bias" or "decay", for kinds that accept it."""
    max_score: float = 10.0
    """Largest absolute score."""
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @property
    def shape(self) -> Shape:
        """Shape of the same call, for `cost`."""
        element_bytes = torch.finfo(self.dtype).bits // 8
        sizes = self.batch, self.heads, self.queries, self.keys, self.key_dim, self.value_dim, self.key_heads
        return Shape(
            *sizes, causal=self.causal, decay=self.causal and self.modifier == "decay", element_bytes=element_bytes
        )


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

    @property
    def modifiers(self) -> dict[str, Any]:
        """Keyword arguments of `weights` and `forward`."""
        return {"causal": self.causal, "mask": self.mask, "bias": self.bias, "decay": self.decay}

    @property
    def differentiable(self) -> list[Tensor]:
        """Tensors whose gradients are compared."""
        return [x for x in (self.q, self.k, self.v, self.bias, self.decay) if x is not None]


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
    modifier = (
        case.modifier if case.modifier in mechanism.accepts and (case.causal or case.modifier == "bias") else None
    )
    q, k, v, bias, decay = (x.to(case.dtype).requires_grad_() for x in (q, k, v, bias, decay))
    return Inputs(
        q,
        k,
        v,
        causal=case.causal,
        mask=mask if case.masked else None,
        bias=bias if modifier == "bias" else None,
        decay=decay if modifier == "decay" else None,
    )
