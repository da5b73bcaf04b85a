"""Softmax attention with a gate by torch's fused kernel: the gate as extra channels of queries and keys.

    scale q_i.k_j + D_j - D_i = (scale q_i, ...).(k_j, ...),    ... = (1, -D_i, 1, -E_i).(D_j, 1, E_j, 1)

D is rounded to the dtype of the products, and E is the rest. The channels come first: a product that adds its terms in
order then takes the differences of D and of E before it adds scores, so that large sums cost no digits. The CPU's
product does so, except for a few tokens beyond a multiple of 16: hence the padding. A bias of all pairs gives the same
result, but takes twice the time, and with gradients three times, and memory for all pairs.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import expand_heads
from qkv.attention.internal.precision import upcast

if TYPE_CHECKING:
    from qkv.attention.scored import ScoreMask

CHANNELS = 4
SHORTEST = 128
"""Tokens from which channels are used; a bias is fast enough for fewer."""
MULTIPLE = 16


def padded_length(keys: int) -> int:
    """Return the length that `add_channels` gives to this many tokens."""
    return -(-keys // MULTIPLE) * MULTIPLE


def takes_channels(queries: int, keys: int, score_mask: "ScoreMask") -> bool:
    """Return whether to add channels: 128 or more tokens, self-attention, no bias, window or mask of pairs."""
    mask = score_mask.mask
    plain = score_mask.bias is None and (mask is None or mask.dim() == 2) and score_mask.window is None
    if score_mask.sums is None or not plain or queries != keys:
        return False
    return torch.compiler.is_compiling() or keys >= SHORTEST  # a traced graph is for short and long sequences


def add_channels(
    q: Tensor, k: Tensor, v: Tensor, score_mask: "ScoreMask", scale: float
) -> tuple[Tensor, Tensor, Tensor, "ScoreMask"]:
    """Return scaled queries, keys and values with the channels of the gate, and the mask of the padded length."""
    sums, heads = score_mask.sums, q.shape[1]
    assert sums is not None
    if sums.shape[1] != k.shape[1]:
        k, v = expand_heads(k, heads), expand_heads(v, heads)
    q, k, v = upcast(q) * scale, upcast(k), upcast(v)
    rounded = sums.to(q.dtype)
    rest = (sums - rounded).to(q.dtype)
    one = torch.ones_like(rounded)
    query_channels = expand_heads(torch.stack((one, -rounded, one, -rest), -1), heads)
    q = torch.cat((query_channels, q), -1)
    k = torch.cat((torch.stack((rounded, one, rest, one), -1), k), -1)
    more = padded_length(k.shape[2]) - k.shape[2]
    q, k, v = (functional.pad(x, (0, 0, 0, more)) for x in (q, k, v))
    mask, documents = score_mask.mask, score_mask.documents
    padded = replace(
        score_mask,
        mask=None if mask is None else functional.pad(mask, (0, more)),
        documents=None if documents is None else functional.pad(documents, (0, more)),
        sums=None,
    )
    return q, k, v, padded
