"""The recurrences of transformers' fallbacks, written down token by token, and random inputs for them in float64.

S_t = exp(-decay_t) S_(t-1)
S_t = S_t + k_t (beta_t (v_t - S_t' k_t))'        the delta rule; without beta: S_t + k_t v_t'
o_t = scale q_t' S_t
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

BATCH, TIME, HEADS, GROUPS, KEY_DIM, VALUE_DIM = 2, 71, 6, 3, 7, 5  # more tokens than a chunk of 64


@contextmanager
def float64():
    """Run their code in float64, although it casts to float32 by name."""
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(Tensor, "float", Tensor.double):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(default)


def recurrence(q, k, v, decay, beta=None, state=None, scale=1.0):
    """Return outputs and the last state of q, k (batch, heads, time, key_dim) and v; decay is per token or channel."""
    decay = decay if decay.dim() == 4 else decay[..., None]
    state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    out = []
    for t in range(q.shape[2]):
        state = torch.exp(-decay[:, :, t])[..., None] * state
        write = v[:, :, t]
        if beta is not None:
            read = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
            write = beta[:, :, t, None] * (write - read)
        state = state + k[:, :, t, :, None] * write[:, :, None]
        out.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(out, 2), state


def unit(x):
    """Return x / |x| with 1e-6 under the root, as both delta rules of transformers take their keys."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def heads_first(x):
    """Swap (batch, time, heads, ...) and (batch, heads, time, ...)."""
    return x.transpose(1, 2)


def normal(*sizes, seed):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def delta_inputs(time=TIME, channels=False, seed=0):
    """q, k, v, g, beta of a delta rule, (batch, time, heads, ...); g is the log of the gate, per channel if asked."""
    rows = BATCH, time, HEADS
    g = -functional.softplus(normal(*rows, *((KEY_DIM,) if channels else ()), seed=seed + 3))
    sizes = (KEY_DIM, KEY_DIM, VALUE_DIM)
    q, k, v = (normal(*rows, size, seed=seed + i) for i, size in enumerate(sizes))
    return q, k, v, g, 2 * normal(*rows, seed=seed + 4).sigmoid()


def scan_inputs(time=TIME, seed=0):
    """x, dt, A, B, C of Mamba-2: (batch, time, heads, value_dim), two (batch, time, groups, key_dim)."""
    x, dt = normal(BATCH, time, HEADS, VALUE_DIM, seed=seed), normal(BATCH, time, HEADS, seed=seed + 1)
    b, c = (normal(BATCH, time, GROUPS, KEY_DIM, seed=seed + i) for i in (2, 3))
    return x, dt, -normal(HEADS, seed=9).exp(), b, c
