"""The counter: every operation that torch really runs, multiplied out and entered in its ledger.

It sees operations below autograd, so it counts what was executed whoever asked for it, backward
too. One that stands in no table is an error or, if asked, a name in `unknown`: never a zero.
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

from qkv.cost.aten import FORMULAS, POINTWISE, REDUCING, is_free, name_of
from qkv.cost.record import causal_pairs


class UncountedError(RuntimeError):
    """An operation was run that stands in no table."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran: what a forecast of its time is made from."""

    name: str
    module: str
    """Path of the module that ran it, "" outside of all."""
    multiplications: int
    elements: int
    """Numbers it wrote."""
    bytes: int
    """Bytes it read and wrote."""
    product: tuple[int, ...] = ()
    """Rows, shared width, columns and copies of a matrix product."""
    window: int = 1
    """Places that a filter or a pool looks at for one result."""


class count_multiplications(TorchDispatchMode):  # noqa: N801 - it reads as a verb: with count_multiplications() as counted
    """Context manager; `.total`, `.needed`, `.by_operation`, `.by_module`, `.ledgers` and `.unknown` hold what ran.

    A multiplication is one inside a matrix product, a convolution or an `einsum` (where torch runs a
    product without a sum as an elementwise one). A fused attention call counts as its two whole
    products, masked halves included: what happens inside a kernel cannot be seen. `needed` leaves out
    the pairs that `is_causal=True` makes useless. Torch's fused fast paths for whole layers are off.
    """

    def __init__(self, *, strict: bool = True, trace: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.by_operation: Counter[str] = Counter()
        self.by_module: Counter[str] = Counter()
        self.ledgers: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.trace: list[Operation] | None = [] if trace else None
        self.spared_twice: Counter[str] = Counter()
        """By module: twice the multiplications of pairs that causal attention has no use for."""
        self.module = ""
        self._calls = _Calls(self)
        self._restore = ExitStack()

    @property
    def total(self) -> int:
        """All multiplications that ran."""
        return sum(self.by_operation.values())

    @property
    def needed(self) -> int:
        """All but those between a query and a key that comes after it."""
        return self.total - sum(self.spared_twice.values()) // 2

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Inside, `.by_module` is filled: multiplications by the innermost module that ran them."""
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
        fast = torch.backends.mha.get_fastpath_enabled()
        self._restore.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        self._restore.enter_context(self._calls)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._restore.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = name_of(func)
        first = out[0] if isinstance(out, tuple | list) and out else out
        multiplications: Any = 0
        if name in FORMULAS:
            multiplications = FORMULAS[name](args, first)
        elif name == "mul" and self._calls.inside_einsum:
            name, multiplications = "einsum", out.numel()
        elif name in POINTWISE:
            self._enter(POINTWISE[name], first)
        elif name in REDUCING:
            self._enter(REDUCING[name], next(a for a in args if isinstance(a, Tensor)))
        elif not is_free(func, name):
            self._refuse(name, func)
        if name in FORMULAS or name == "einsum":
            self.by_operation[name] += multiplications
            self.by_module[self.module] += multiplications
        if self.trace is not None and name != "prim":
            self.trace.append(_note("view" if func.is_view else name, self.module, multiplications, args, out))
        return out

    def _enter(self, rates: dict[str, int], counted: Any) -> None:
        for ledger, rate in rates.items():
            self.ledgers[ledger] += rate * counted.numel()

    def _refuse(self, name: str, func: Any) -> None:
        if self.strict:
            raise UncountedError(f"no multiplication formula for {func}; add one to qkv/cost/aten.py")
        self.unknown[name] += 1


class _Calls(TorchFunctionMode):
    """What only the caller's words tell: that a product is an `einsum`, that attention is causal."""

    def __init__(self, counting: count_multiplications):
        super().__init__()
        self.counting = counting
        self.inside_einsum = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and _argument(args, kwargs, 5, "is_causal"):
            q, k, v = (_argument(args, kwargs, i, name) for i, name in enumerate(("query", "key", "value")))
            self.counting.spared_twice[self.counting.module] += _spared_twice(q, k, v)
        if func is not torch.einsum or self.inside_einsum:
            return func(*args, **kwargs)
        self.inside_einsum = True
        try:
            return func(*args, **kwargs)
        finally:
            self.inside_einsum = False


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _spared_twice(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Multiplications with keys after the query, twice; torch counts both from the first, whatever their numbers.

    Twice, so that nothing is divided: q and k may have letters for lengths, and then are equally many.
    """
    batch, heads, queries, key_dim = q.shape
    keys, dims = k.shape[2], key_dim + v.shape[3]
    if isinstance(queries, torch.SymInt):
        return batch * heads * dims * queries * (queries - 1)
    seen = causal_pairs(min(queries, keys), min(queries, keys)) + max(queries - keys, 0) * keys
    return 2 * batch * heads * dims * (queries * keys - seen)


def _note(name: str, module: str, multiplications: int, args: Any, out: Any) -> Operation:
    """The operation as a forecast needs it."""
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
        _shape(name, args, given, results),
        _window(name, args, given),
    )


def _shape(name: str, args: Any, given: list[Tensor], results: list[Tensor]) -> tuple[int, ...]:
    """Rows, shared width, columns and copies of what is a matrix product, or nearly one."""
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = given[-2:]
        return left.shape[-2], left.shape[-1], right.shape[-1], left.shape[0] if left.dim() == 3 else 1
    if name.startswith("_scaled_dot_product"):
        q, k = given[:2]
        keys = _keys_visited(q.shape[2], k.shape[2]) if name.endswith("cpu") and args[4:5] == (True,) else k.shape[2]
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
    """On average over the queries: torch's causal kernel skips keys by the 512, for queries by the 32, 64 or 256."""
    block = 256 if queries >= 768 else 64 if queries >= 192 else 32
    seen = [min(keys, -(-min(start + block, queries) // 512) * 512) for start in range(0, queries, block)]
    return round(sum(seen) / len(seen)) if seen else keys
