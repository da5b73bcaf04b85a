"""Softmax attention: scaled dot-product attention.

    weight(q, k) = exp(scale q.k + bias) / sum over the visible keys of the same
    scale = key_dim^-0.5

Paper: https://arxiv.org/abs/1706.03762. `forward` dispatches to torch's fused kernels; `weights` recomputes
the matrix on request. With a sliding window each query sees the last `window` keys, including its own, and
the cost is linear in length. In training, `dropout` zeroes that fraction of the weights and scales up the rest.
A gate (`decay` per token) multiplies exp(scale q.k) by exp(-sum of the rates after the key, up to the query): the
Forgetting Transformer, https://arxiv.org/abs/2503.02130.
"""

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import check_backend, check_integer, register
from qkv.attention.internal.gate_channels import CHANNELS, SHORTEST, add_channels, padded_length, takes_channels
from qkv.attention.internal.gates import SUM_BYTES
from qkv.attention.internal.precision import upcast
from qkv.attention.internal.validation import Modifiers
from qkv.attention.scored import Scored, ScoreMask
from qkv.cost import Cost, Shape, causal_pairs
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@register("softmax")
class Softmax(Scored):
    """Attention by torch's `scaled_dot_product_attention`."""

    accepts = frozenset({"pairs", "bias", "gate", "rotation"})
    backends = ("reference", "sdpa")

    def __init__(
        self, *, scale: float | None = None, window: int | None = None, dropout: float = 0.0, backend: str = "auto"
    ):
        super().__init__()
        if window is not None and check_integer("window", window) < 1:
            raise ValueError(f"window must be at least 1 (the token itself), got {window}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        if dropout and backend == "reference":
            raise ValueError(f"dropout={dropout} needs backend='sdpa': the reference has no dropout")
        self.scale = scale
        self.window = window
        self.dropout = dropout
        self.backend = check_backend("softmax", backend, self.backends)

    def score_scale(self, key_dim: int) -> float:
        """Return `scale`; default: key_dim^-0.5."""
        return key_dim**-0.5 if self.scale is None else float(self.scale)

    def scores(self, q: Queries, k: Keys) -> Weights:
        """Return scale q.k"""
        return q @ k.transpose(-1, -2) * self.score_scale(q.shape[-1])

    def prepare_keys(self, k: Keys) -> Keys:
        """Return the keys unchanged."""
        return k

    def depends_on_length(self, modifiers: Modifiers) -> bool:
        """Return whether there are blocks of a window, or a gate; not with a bias or dropout, which are traced."""
        looped = modifiers.decay is not None or self.window is not None
        return looped and modifiers.bias is None and self.dropout == 0

    def attend(self, q: Queries, k: Keys, v: Values, score_mask: ScoreMask) -> Outputs:
        """Call torch's fused kernel: once, or once per block of queries under a window (in a traced graph, once)."""
        if self.backend == "reference":
            return self.reference_output(q, k, v, score_mask)
        if takes_channels(q.shape[2], k.shape[2], score_mask):
            wide = add_channels(q, k, v, score_mask, self.score_scale(q.shape[-1]))
            return self._fused(*wide, scale=1.0)[:, :, : q.shape[2]].to(q.dtype)
        # a loop over blocks would make one graph per length
        if self.window is None or torch.compiler.is_compiling() or not self._takes_blocks(q.shape[2], k.shape[2]):
            return self._fused(q, k, v, score_mask)
        starts = range(0, max(q.shape[2], 1), self._block_size())
        return torch.cat([self._fused_block(q, k, v, score_mask, start) for start in starts], 2)

    def cost(self, shape: Shape) -> Cost:
        """Return the cost of two products over the pairs of query and key."""
        pairs = shape.queries * shape.keys
        needed = causal_pairs(shape.queries, shape.keys, self.window) if shape.causal else pairs
        executed = {"scores": pairs * shape.key_dim, "values": pairs * shape.value_dim}
        if self.backend != "reference":
            executed = dict.fromkeys(executed, self._fused_products(shape))
        tokens = min(shape.keys, self.window or shape.keys)
        held = tokens * shape.key_rows * shape.element_bytes
        gate = {"gate": tokens * shape.batch * shape.gate_heads * SUM_BYTES} if shape.gate_heads else {}
        return Cost(
            needed={
                "scores": shape.rows * needed * shape.key_dim,
                "values": shape.rows * needed * shape.value_dim,
            },
            executed={name: shape.rows * count for name, count in executed.items()},
            state={"keys": held * shape.key_dim, "values": held * shape.value_dim, **gate},
        )

    @classmethod
    def example(cls, key_dim: int) -> "Softmax":
        """Build one with the default options."""
        return cls()

    def _block_size(self) -> int:
        assert self.window is not None
        return max(self.window, 64)

    def _takes_blocks(self, queries: int, keys: int) -> bool:
        """Return whether to attend per block of queries; a few queries after past keys are one block."""
        return queries == keys or queries > self._block_size()

    def _fused_block(self, q: Queries, k: Keys, v: Values, score_mask: ScoreMask, start: int) -> Tensor:
        """Attend from one block of queries to the keys that any of them can see."""
        assert self.window is not None
        past, end = k.shape[2] - q.shape[2], min(start + self._block_size(), q.shape[2])
        seen = slice(max(past + start - self.window + 1, 0), past + end)
        inside = score_mask.block(slice(start, end), seen)
        return self._fused(q[:, :, start:end], k[:, :, seen], v[:, :, seen], inside)

    def _fused_products(self, shape: Shape) -> int:
        """Return the multiplications of one product of the fused kernel, for one head; its widths are padded to one."""
        channels = shape.causal and shape.queries == shape.keys and shape.keys >= SHORTEST
        if shape.gate_heads and self.window is None and channels:
            return padded_length(shape.keys) ** 2 * max(shape.key_dim + CHANNELS, shape.value_dim)
        return self._pairs_in_blocks(shape) * max(shape.key_dim, shape.value_dim)

    def _pairs_in_blocks(self, shape: Shape) -> int:
        if self.window is None or not self._takes_blocks(shape.queries, shape.keys):
            return shape.queries * shape.keys
        past = shape.keys - shape.queries
        blocks = ((s, min(s + self._block_size(), shape.queries)) for s in range(0, shape.queries, self._block_size()))
        return sum((end - start) * (past + end - max(past + start - self.window + 1, 0)) for start, end in blocks)

    def _fused(self, q: Queries, k: Keys, v: Values, score_mask: ScoreMask, *, scale: float | None = None) -> Outputs:
        dtype, value_dim = q.dtype, v.shape[3]
        scale = self.score_scale(q.shape[-1]) if scale is None else scale
        if q.device.type == "cpu":
            q, k, v = upcast(q), upcast(k), upcast(v)  # some CPUs crash in half-precision products
        if scale <= 0:  # torch masks with -inf before it scales: -inf * -1 would unmask, -inf * 0 is NaN
            q, scale = (-q, -scale) if scale else (0 * q, 1.0)
        # pad to one width, which torch's fused kernels require; the zeros add nothing
        width = max(q.shape[3], value_dim)
        q, k, v = _pad(q, width), _pad(k, width), _pad(v, width)
        # where torch traces, a comparison of sizes, its `and` and its bool() are a SymBool, which SDPA does not take
        is_causal, grouped = False, {}
        if score_mask.causal and score_mask.unmodified and self.window is None and q.shape[2] == k.shape[2]:
            is_causal = True
        if q.shape[1] != k.shape[1]:
            grouped = {"enable_gqa": True}
        mask, dropout = None if is_causal else _sdpa_mask(q, k, score_mask), self.dropout if self.training else 0.0
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale, **grouped
        )
        return out[..., :value_dim].to(dtype)


def _pad(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else functional.pad(x, (0, width - x.shape[-1]))


def _sdpa_mask(q: Queries, k: Keys, score_mask: ScoreMask) -> Tensor | None:
    """Merge visibility and bias into the one mask that torch's kernel takes."""
    seen = score_mask.visible_pairs(q, k)
    bias = score_mask.score_bias(q)
    if bias is None:
        return seen
    return bias if seen is None else bias.masked_fill(~seen, -torch.inf)
