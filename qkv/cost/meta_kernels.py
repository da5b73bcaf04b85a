"""Meta kernels whose results are remembered: equal layers of a model run the same operations on the same shapes.

Torch computes most shapes on the meta device by Python code, which takes far longer than the lookup of a known result.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAX_KNOWN_RESULTS = 20_000
"""Results that one process remembers; about a kilobyte each."""


class _ResultLayout(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make_tensor(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


_known_results: dict[Any, tuple[Any, list[_ResultLayout]]] = {}


class _NotRememberedError(Exception):
    """The result of this call does not follow from the shapes alone."""


class RememberedKernels(TorchDispatchMode):
    """Context manager: an operation on meta tensors of known shapes returns empty tensors like those of the first call.

    Views, operations that write to an argument, and those whose results share memory always run.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_pure(func):
            return func(*args, **kwargs)
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())))
        except _NotRememberedError:
            return func(*args, **kwargs)
        known = _known_results.get(key)
        if known is None:
            out = func(*args, **kwargs)
            layouts = _layouts(out, (args, kwargs))
            if layouts is not None:
                if len(_known_results) >= MAX_KNOWN_RESULTS:
                    _known_results.clear()
                _known_results[key] = type(out), layouts
            return out
        kind, layouts = known
        made = [layout.make_tensor() for layout in layouts]
        return made[0] if issubclass(kind, Tensor) else kind(made)


@cache
def _is_pure(func: Any) -> bool:
    """Return whether an operation neither writes to its arguments nor returns views of them."""
    schema = func._schema
    return not any(one.alias_info is not None for one in (*schema.arguments, *schema.returns))


def _key(value: Any) -> Any:
    """Return what the shape of a result may depend on."""
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout is torch.strided
        if not plain or not value.is_meta or value.is_complex():
            raise _NotRememberedError
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | torch.layout):
        return (type(value), value)
    if isinstance(value, torch.memory_format):
        return value
    raise _NotRememberedError


def _layouts(out: Any, given: Sequence[Any]) -> list[_ResultLayout] | None:
    """Return the layouts of newly allocated results; None if one is not a plain tensor or if two share memory."""
    results = [out] if isinstance(out, Tensor) else list(out) if type(out) in (tuple, list) else []
    if not results or not all(type(one) is Tensor and one.is_meta and not one.is_complex() for one in results):
        return None
    layouts = [_ResultLayout(tuple(one.shape), one.stride(), one.dtype) for one in results]
    storages = [one.untyped_storage() for one in results]
    taken = {one.untyped_storage()._cdata for one in tree_leaves(given) if isinstance(one, Tensor)}
    fresh = {storage._cdata for storage in storages} - taken
    as_remembered = [layout.make_tensor().untyped_storage().nbytes() for layout in layouts]
    if len(fresh) < len(results) or as_remembered != [storage.nbytes() for storage in storages]:
        return None
    return layouts
