"""The counter: every matrix product that torch really runs, multiplied out.

It sees operations below autograd, so it counts what was executed whoever asked for it. An
operation that multiplies matrices in a way it has no formula for is an error, never a zero.
"""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
# word in the name of an operation -> it multiplies matrices, so it needs a formula
_HEAVY = ("mm", "matmul", "mv", "dot", "attention", "conv", "lstm", "gru", "rnn", "linear", "einsum", "cdist")
_FREE = {_aten.scalar_tensor, _aten.linalg_vector_norm}


class UncountedError(RuntimeError):
    """An operation that multiplies matrices was run, and no formula for it is known."""


def _attention_on_cpu(q: Any, k: Any, v: Any) -> int:
    batch, heads, queries, key_dim = q
    return batch * heads * queries * k[-2] * (key_dim + v[-1])


# what torch's own registry lacks: shapes of the tensor arguments -> multiplications
_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten.mv: lambda matrix, vector: prod(matrix),
    _aten.addmv: lambda bias, matrix, vector: prod(matrix),
    _aten.dot: lambda left, right: prod(left),
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *rest: _attention_on_cpu(q, k, v),
}


class count_multiplications(TorchDispatchMode):  # noqa: N801 - it reads as a verb: with count_multiplications() as counted
    """Context manager; `.total` and `.by_operation` hold what ran inside.

    A fused attention call counts as its two whole products, masked halves included: what happens
    inside a kernel cannot be seen, so the count is the convention of torch's own counter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_operation: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All multiplications."""
        return self.by_operation.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in _FORMULAS:
            shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
            self.by_operation[str(packet)] += _FORMULAS[packet](*shapes)
        elif packet in flop_registry:
            self.by_operation[str(packet)] += flop_registry[packet](*args, **(kwargs or {}), out_val=out) // 2
        elif packet not in _FREE and any(word in str(packet).split(".")[-1] for word in _HEAVY):
            raise UncountedError(f"no multiplication formula for {func}; add one to qkv/cost/count.py")
        return out
