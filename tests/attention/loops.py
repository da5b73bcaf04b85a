"""Attention by plain loops over Python floats: slow, obvious, and sharing no code with the library."""

import math

import torch


def attention(q, k, v, weight, *, causal=False, mask=None, decay=None, divide=True):
    """sum_j weight(q_i, k_j, where) v_j, divided by the sum of the weights; where = (batch, head, i, j)."""
    batch, heads, queries, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                total, sums = 0.0, [0.0] * v.shape[3]
                for j in range(k.shape[2]):
                    if (causal and j > i) or (mask is not None and not mask[b, j]):
                        continue
                    w = weight(q[b, h, i].tolist(), k[b, h // group, j].tolist(), (b, h, i, j))
                    if decay is not None:
                        w *= math.exp(-float(decay[h]) * (i - j))
                    total += w
                    sums = [s + w * x for s, x in zip(sums, v[b, h // group, j].tolist(), strict=True)]
                if divide and total != 0:
                    sums = [s / total for s in sums]
                out[b, h, i] = torch.tensor(sums, dtype=torch.float64)
    return out


def dot(x, y):
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def random_qkv(queries=5, keys=7, heads=6, key_heads=3, key_dim=11, value_dim=13, batch=2):
    """Draw inputs with distinct primes for the axes, so that swapped axes cannot pass."""
    shapes = (batch, heads, queries, key_dim), (batch, key_heads, keys, key_dim), (batch, key_heads, keys, value_dim)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
