"""Softmax attention: the exact one.

    weight(q, k) = exp(scale q.k + bias) / sum over the visible keys of the same
    scale = key_dim^-0.5

Paper: https://arxiv.org/abs/1706.03762. torch's fused kernels do the work; `weights` recomputes the
matrix when it is asked for. With a sliding window each query sees the last `window` keys, its own
among them, and the cost is linear in length. While training, `dropout` leaves out that share of the weights
and makes the others larger by as much: the mean stays.
"""

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import check_backend, check_whole, register, widen
from qkv.attention.scored import Pairs, Scored
from qkv.cost import Cost, Shape, causal_pairs
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@register("softmax")
class Softmax(Scored):
    """Attention by torch's `scaled_dot_product_attention`."""

    accepts = frozenset({"pairs", "bias", "rotation"})
    backends = ("reference", "sdpa")

    def __init__(
        self, *, scale: float | None = None, window: int | None = None, dropout: float = 0.0, backend: str = "auto"
    ):
        super().__init__()
        if window is not None and check_whole("window", window) < 1:
            raise ValueError(f"window must be at least 1 (the token itself), got {window}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        if dropout and backend == "reference":
            raise ValueError(f"dropout={dropout} needs the backend sdpa: the definition drops nothing")
        self.scale = scale
        self.window = window
        self.dropout = dropout
        self.backend = check_backend("softmax", backend, self.backends)

    def scores(self, q: Queries, k: Keys) -> Weights:
        """scale q.k"""
        return q @ k.transpose(-1, -2) * self._scale(q)

    def prepare(self, k: Keys) -> Keys:
        """A key is remembered as it is."""
        return k

    def attend(self, q: Queries, k: Keys, v: Values, pairs: Pairs) -> Outputs:
        """torch's kernels, one call for all, or one per block of queries under a window."""
        if self.backend == "reference":
            return self.average(q, k, v, pairs)
        if self.window is None or q.shape[2] != k.shape[2]:
            return self._fused(q, k, v, pairs)
        starts = range(0, max(q.shape[2], 1), self._block())
        return torch.cat([self._fused_block(q, k, v, pairs, start) for start in starts], 2)

    def cost(self, shape: Shape) -> Cost:
        """Two products over the pairs of query and key."""
        pairs, dims = shape.queries * shape.keys, shape.key_dim + shape.value_dim
        needed = causal_pairs(shape.queries, shape.keys, self.window) if shape.causal else pairs
        executed = {"scores": pairs * shape.key_dim, "values": pairs * shape.value_dim}
        if self.backend != "reference":
            dims = max(shape.key_dim, shape.value_dim)  # the smaller one is padded
            executed = dict.fromkeys(executed, self._pairs_in_blocks(shape) * dims)
        held = min(shape.keys, self.window or shape.keys) * shape.key_rows * shape.element_bytes
        return Cost(
            needed={
                "scores": shape.rows * needed * shape.key_dim,
                "values": shape.rows * needed * shape.value_dim,
            },
            executed={name: shape.rows * count for name, count in executed.items()},
            state={"keys": held * shape.key_dim, "values": held * shape.value_dim},
        )

    @classmethod
    def example(cls, key_dim: int) -> "Softmax":
        """The plain one."""
        return cls()

    def _scale(self, q: Queries) -> float:
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def _block(self) -> int:
        assert self.window is not None
        return max(self.window, 64)

    def _fused_block(self, q: Queries, k: Keys, v: Values, pairs: Pairs, start: int) -> Tensor:
        """The queries of one block, and the keys that any of them can see."""
        assert self.window is not None
        end = min(start + self._block(), q.shape[2])
        first = max(start - self.window + 1, 0)
        mask, bias = pairs.mask, pairs.bias
        if mask is not None:
            mask = mask[:, first:end] if mask.dim() == 2 else mask[:, :, start:end, first:end]
        if bias is not None:
            bias = bias[:, :, start:end, first:end]
        inside = Pairs(True, self.window, mask, bias)
        return self._fused(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], inside)

    def _pairs_in_blocks(self, shape: Shape) -> int:
        if self.window is None:
            return shape.queries * shape.keys
        blocks = ((s, min(s + self._block(), shape.queries)) for s in range(0, shape.queries, self._block()))
        return sum((end - start) * (end - max(start - self.window + 1, 0)) for start, end in blocks)

    def _fused(self, q: Queries, k: Keys, v: Values, pairs: Pairs) -> Outputs:
        dtype, value_dim, scale = q.dtype, v.shape[3], self._scale(q)
        if q.device.type == "cpu":
            q, k, v = widen(q), widen(k), widen(v)  # some CPUs fault in half-precision products
        if scale <= 0:  # torch hides the future by -inf before it scales: -inf * -1 would show it, -inf * 0 is NaN
            q, scale = (-q, -scale) if scale else (0 * q, 1.0)
        # one width for all: torch's fused kernels take nothing else, and zeros add nothing
        width = max(q.shape[3], value_dim)
        q, k, v = _pad(q, width), _pad(k, width), _pad(v, width)
        plain = pairs.causal and pairs.mask is None and pairs.bias is None and q.shape[2] == k.shape[2]
        triangle = plain and self.window is None
        out = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if triangle else _score_mask(q, k, pairs),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=triangle,
            scale=scale,
            enable_gqa=bool(q.shape[1] != k.shape[1]),
        )
        return out[..., :value_dim].to(dtype)


def _pad(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else functional.pad(x, (0, width - x.shape[-1]))


def _score_mask(q: Queries, k: Keys, pairs: Pairs) -> Tensor | None:
    """Visibility and bias as the one mask that torch's kernel takes."""
    seen = pairs.visible(q, k)
    if pairs.bias is None:
        return seen
    bias = pairs.bias.to(q.dtype)
    return bias if seen is None else bias.masked_fill(~seen, -torch.inf)
