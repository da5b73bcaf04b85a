"""One decoding step of an attention kind for one token, without the generality of `Attention.step`.

    softmax         append to the KV cache, then one call of torch's kernel
    feature maps    S += phi(k) v',  z += phi(k),  o = phi(q)' S / phi(q)' z
    delta           S += k (v - S' k)',  o = scale q' S,  with unit q and k

The states are those of the kinds. What these forms do not cover goes to `Attention.step`.
"""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention import Attention, Delta, Softmax, State
from qkv.attention.feature_map import FeatureMap
from qkv.attention.internal.delta_rule import unit
from qkv.attention.internal.masking import safe_divide
from qkv.attention.kv_cache import KVCache
from qkv.attention.recurrent_state import RecurrentState

TokenStep = Callable[[Tensor, Tensor, Tensor, State], tuple[Tensor, State]]
"""(q, k, v, each (rows, heads, 1, dim), state) -> (outputs, new state)"""


def token_step(attention: Attention, key_dim: int, value_dim: int) -> TokenStep:
    """Return the fastest step of one token for this mechanism."""
    if type(attention) is Softmax and attention.window is None and key_dim == value_dim:
        scale = attention.score_scale(key_dim)
        if scale > 0 and attention.backend != "reference":
            return _SoftmaxToken(attention, scale)
    if type(attention) is Delta and attention.backend != "triton":
        return _DeltaToken(attention, key_dim)
    if isinstance(attention, FeatureMap) and attention.backend != "triton":
        return _FeatureToken(attention, key_dim)
    return attention.step


class _SoftmaxToken:
    """Softmax over a KV cache."""

    def __init__(self, attention: Softmax, scale: float):
        self.attention = attention
        self.scale = scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        if not isinstance(state, KVCache) or not state.addressable_keys or _is_gated(state):
            return self.attention.step(q, k, v, state)
        state = state.append(k, v, None)
        mask = None if state.mask is None else state.mask[:, None, None]
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        out = functional.scaled_dot_product_attention(q, state.keys, state.values, mask, scale=self.scale, **grouped)
        return out, state


class _FeatureToken:
    """The recurrence of a feature map."""

    def __init__(self, attention: FeatureMap, key_dim: int):
        self.attention = attention
        self.scale = attention.default_scale(key_dim) if attention.scale is None else attention.scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        if not isinstance(state, RecurrentState) or not k.shape[1] == q.shape[1] == state.kv_sum.shape[1]:
            return self.attention.step(q, k, v, state)
        state.require_unconsumed()
        queries = self.attention.features((q * self.scale).flatten(0, 1))  # [rows * heads, 1, features]
        keys = self.attention.features(k.flatten(0, 1)).transpose(1, 2)
        kv_sum = torch.baddbmm(state.kv_sum.flatten(0, 1), keys, v.flatten(0, 1))
        out, k_sum = torch.bmm(queries, kv_sum), None
        if state.k_sum is not None:
            k_sum = state.k_sum.flatten(0, 1) + keys
            out = safe_divide(out, torch.bmm(queries, k_sum))
            if not isfinite(out.sum().item()):
                return self.attention.step(q, k, v, state)
            k_sum = k_sum.view_as(state.k_sum)
        return out.view_as(v), RecurrentState(kv_sum.view_as(state.kv_sum), k_sum, state.length + 1)


class _DeltaToken:
    """The recurrence of the delta rule."""

    def __init__(self, attention: Delta, key_dim: int):
        self.attention = attention
        self.scale = key_dim**-0.5 if attention.scale is None else attention.scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        if not isinstance(state, RecurrentState) or not k.shape[1] == q.shape[1] == state.kv_sum.shape[1]:
            return self.attention.step(q, k, v, state)
        state.require_unconsumed()
        past, keys = state.kv_sum.flatten(0, 1), unit(k).flatten(0, 1)
        error = torch.baddbmm(v.flatten(0, 1), keys, past, alpha=-1)  # [rows * heads, 1, value_dim]
        kv_sum = torch.baddbmm(past, keys.transpose(1, 2), error)
        out = torch.bmm(unit(q).flatten(0, 1), kv_sum) * self.scale
        return out.view_as(v), RecurrentState(kv_sum.view_as(state.kv_sum), None, state.length + 1)


def _is_gated(state: KVCache) -> bool:
    return state.decay_sums is not None or state.documents is not None
