"""Count the multiplications and elementwise work of every operation that torch runs.

The counter intercepts operations below autograd, so it sees the backward pass too. An operation without
a table entry is an error or, with `strict=False`, a name in `unknown`: never a zero.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.cost.aten import FORMULAS, POINTWISE, REDUCING, is_free, operation_name
from qkv.cost.record import causal_pairs


class UncountedError(RuntimeError):
    """An operation ran that has no table entry."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran, as a time forecast needs it."""

    name: str
    module: str
    """Path of the module that ran it; "" outside all modules."""
    multiplications: int
    elements: int
    """Elements written."""
    bytes: int
    """Bytes read and written."""
    matmul_shape: tuple[int, ...] = ()
    """(rows, shared, columns, copies) of a matrix product; () for other operations."""
    window: int = 1
    """Inputs per output of a convolution filter or a pooling window."""


class count_multiplications(TorchDispatchMode):  # noqa: N801 - it reads as a verb: with count_multiplications() as counted
    """Context manager with the counts `total`, `needed`, `by_operation`, `by_module`, `by_op_class` and `unknown`.

    A multiplication is one inside a matrix product, a convolution or an `einsum` (which torch runs as an
    elementwise product if nothing is summed). A fused attention call counts as its two full products,
    masked pairs included: what happens inside a kernel is not visible. `needed` excludes the pairs that
    `is_causal=True` masks. Torch's fused paths for whole layers are disabled.
    """

    def __init__(self, *, strict: bool = True, trace: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.by_operation: Counter[str] = Counter()
        self.by_module: Counter[str] = Counter()
        self.by_op_class: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.trace: list[Operation] | None = [] if trace else None
        self.causal_excess_doubled: Counter[str] = Counter()
        """Module -> twice the multiplications spent on pairs that a causal mask hides."""
        self.module = ""
        self.dispatched = 0
        """Operations that torch ran, views included."""
        self._calls = _CallContext(self)
        self._restore = ExitStack()

    @property
    def total(self) -> int:
        """Multiplications executed."""
        return sum(self.by_operation.values())

    @property
    def needed(self) -> int:
        """Multiplications executed, except those between a query and a later key."""
        return self.total - sum(self.causal_excess_doubled.values()) // 2

    @contextmanager
    def track_modules(self, model: nn.Module) -> Iterator[None]:
        """Attribute multiplications to the innermost module that runs them, in `by_module`."""
        paths: list[str] = []

        def enter(path: str) -> Any:
            def hook(*_: Any) -> None:
                paths.append(self.module)
                self.module = path

            return hook

        def leave(*_: Any) -> None:
            self.module = paths.pop()

        with ExitStack() as hooks:
            for path, module in model.named_modules():
                hooks.callback(module.register_forward_pre_hook(enter(path)).remove)
                hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
            yield

    def __enter__(self) -> "count_multiplications":
        fastpath = torch.backends.mha.get_fastpath_enabled()
        self._restore.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        self._restore.enter_context(self._calls)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._restore.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.dispatched += 1
        name = operation_name(func)
        first = out[0] if isinstance(out, tuple | list) and out else out
        multiplications: Any = 0
        if name in FORMULAS:
            multiplications = FORMULAS[name](args, first)
        elif name == "mul" and self._calls.inside_einsum:
            name, multiplications = "einsum", out.numel()
        elif name in POINTWISE:
            self._add_elementwise(POINTWISE[name], first)
        elif name in REDUCING:
            self._add_elementwise(REDUCING[name], next(a for a in args if isinstance(a, Tensor)))
        elif not is_free(func, name):
            self._handle_unknown(name, func)
        if name in FORMULAS or name == "einsum":
            self.by_operation[name] += multiplications
            self.by_module[self.module] += multiplications
        if self.trace is not None and name != "prim":
            self.trace.append(_describe("view" if func.is_view else name, self.module, multiplications, args, out))
        return out

    def _add_elementwise(self, per_element: dict[str, int], counted: Any) -> None:
        for op_class, count in per_element.items():
            self.by_op_class[op_class] += count * counted.numel()

    def _handle_unknown(self, name: str, func: Any) -> None:
        if self.strict:
            raise UncountedError(f"no multiplication formula for {func}; add one to qkv/cost/aten.py")
        self.unknown[name] += 1


class _CallContext(TorchFunctionMode):
    """Facts visible only in the Python call: whether a product is an `einsum`, whether attention is causal."""

    def __init__(self, counting: count_multiplications):
        super().__init__()
        self.counting = counting
        self.inside_einsum = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and _argument(args, kwargs, 5, "is_causal"):
            q, k, v = (_argument(args, kwargs, i, name) for i, name in enumerate(("query", "key", "value")))
            self.counting.causal_excess_doubled[self.counting.module] += _causal_excess_doubled(q, k, v)
        if func is not torch.einsum or self.inside_einsum:
            return func(*args, **kwargs)
        self.inside_einsum = True
        try:
            return func(*args, **kwargs)
        finally:
            self.inside_einsum = False


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def _causal_excess_doubled(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Return twice the multiplications of queries with later keys; query i has the position of key i, as in torch.

    Doubled to avoid a division, since lengths may be symbolic; q and k then have the same length.
    """
    batch, heads, queries, key_dim = q.shape
    keys, dims = k.shape[2], key_dim + v.shape[3]
    if isinstance(queries, torch.SymInt):
        return batch * heads * dims * queries * (queries - 1)
    visible = causal_pairs(min(queries, keys), min(queries, keys)) + max(queries - keys, 0) * keys
    return 2 * batch * heads * dims * (queries * keys - visible)


def _describe(name: str, module: str, multiplications: int, args: Any, out: Any) -> Operation:
    """Return the operation with the sizes that a time forecast needs."""
    if name == "view":
        return Operation(name, module, 0, 0, 0)
    results = [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, Tensor)]
    flat = [x for a in args for x in (a if isinstance(a, tuple | list) else (a,))]
    given = [x for x in flat if isinstance(x, Tensor)]
    moved = sum(x.numel() * x.element_size() for x in (*given, *results))
    return Operation(
        name,
        module,
        multiplications,
        sum(x.numel() for x in results),
        moved,
        _matmul_shape(name, args, given, results),
        _window(name, args, given),
    )


def _matmul_shape(name: str, args: Any, given: list[Tensor], results: list[Tensor]) -> tuple[int, ...]:
    """Return (rows, shared, columns, copies) of a matrix product or of an operation like one."""
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = given[-2:]
        return left.shape[-2], left.shape[-1], right.shape[-1], left.shape[0] if left.dim() == 3 else 1
    if name.startswith("_scaled_dot_product"):
        q, k = given[:2]
        skips_keys = name.endswith("cpu") and args[4:5] == (True,)  # is_causal
        keys = _keys_visited(q.shape[2], k.shape[2]) if skips_keys else k.shape[2]
        return q.shape[2], q.shape[3], keys, q.shape[0] * q.shape[1]
    if name in ("mv", "addmv"):
        return 1, given[-1].shape[0], given[-2].shape[0], 1
    if name == "convolution":
        out, groups = results[0], args[8]
        return out.numel() // out.shape[1], given[1][0].numel(), out.shape[1] // groups, groups
    if name == "mkldnn_rnn_layer":
        x, weight = given[:2]
        return x.shape[1], x.shape[2], weight.shape[0], x.shape[0]
    return ()


def _window(name: str, args: Any, given: list[Tensor]) -> int:
    if name == "convolution":
        return prod(given[1].shape[2:])
    return prod(args[1]) if name in ("max_pool2d_with_indices", "avg_pool2d") else 1


def _keys_visited(queries: int, keys: int) -> int:
    """Return the mean keys per query: torch's causal kernel skips blocks of 512 keys per block of queries."""
    block = 256 if queries >= 768 else 64 if queries >= 192 else 32
    visited = [min(keys, -(-min(start + block, queries) // 512) * 512) for start in range(0, queries, block)]
    return round(sum(visited) / len(visited)) if visited else keys
