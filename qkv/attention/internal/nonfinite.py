"""What to do if a result is NaN or infinite. The check itself does not synchronize with the GPU.

Two cases are repaired. 0 * NaN is NaN, so multiplying by a causal mask does not stop a NaN of a future token from
reaching earlier outputs. And a polynomial of large scores overflows float32, although its normalized weight is an
ordinary number. Both are rare: a kind computes as usual, and only if the result is not finite, again and slower.
"""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor, nn


def all_finite(x: Tensor) -> bool:
    """Return False if `x` holds NaN or inf, or its sum overflows; True where its values cannot be read for free.

    That is on a GPU, where reading waits for the device, and while torch traces, compiles or transforms.
    """
    if not is_readable(x):
        return True
    return isfinite(x.detach().sum().item())


def is_readable(x: Tensor) -> bool:
    """Return whether values can be read for free: not on a GPU, nor while torch traces, compiles or transforms."""
    if type(x) not in (Tensor, nn.Parameter) or x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not (
        torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() or torch._C._is_tracing()
    )


def keep_past_finite(attend: Callable[..., Tensor], *sequences: Tensor) -> Tensor:
    """Apply causal attention so that NaN and inf in keys or values reach no output before them.

    Each sequence is (batch, key_heads, keys, dim). `attend` takes them and returns (batch, heads, queries, value_dim)
    or (batch, key_heads, group, queries, value_dim).
    """
    finite = torch.stack([x.isfinite().all(-1, keepdim=True) for x in sequences]).all(0)  # batch key_heads keys 1
    out, past = attend(*sequences), attend(*(x.masked_fill(~finite, 0) for x in sequences))
    reached = ((~finite).cumsum(-2) > 0)[..., finite.shape[-2] - out.shape[-2] :, :]
    if out.dim() > reached.dim():
        reached = reached.unsqueeze(2)
    elif out.shape[1] != reached.shape[1]:
        reached = reached.repeat_interleave(out.shape[1] // reached.shape[1], 1)
    return torch.where(reached, out, past)


def attend_again(attend: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Compute a result that was not finite again, with care; `attend` computes in the dtype of the values it is given.

    Finite inputs: large scores overflowed, so compute in float64, which has finite gradients as well. Otherwise keep
    the bits of every output that no NaN or inf reaches.
    """
    if all(bool(x.isfinite().all()) for x in (q, k, v)):
        return attend(v.double())
    if not causal:
        return attend(v)
    narrow, wide = keep_past_finite(attend, v), keep_past_finite(attend, v.double())
    return torch.where(narrow.isfinite(), narrow, wide)
