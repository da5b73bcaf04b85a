"""Check every address that an interpreted kernel reads or writes.

    with checked_addresses() as launches:
        attend(q, k, v)

An address outside of the tensors of its launch raises `AddressError`. A GPU reports such an address late or, where
other memory is mapped there, not at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from qkv.attention.triton.launch_cache import CachedKernel

ACCESSES = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}
"""Method of the interpreter -> index of its mask; loads and stores without a mask call these, too."""


class AddressError(AssertionError):
    """An address outside of every tensor of the launch."""


class Launch:
    """The memory of one launch, as sorted ranges [start, end) of addresses."""

    def __init__(self, kernel: str, tensors: dict[str, Tensor]):
        self.kernel = kernel
        self.ranges = {name: memory_range(x) for name, x in tensors.items() if x.numel()}
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self.ranges.values()):
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        self.starts, self.ends = np.array(merged, dtype=np.uint64).reshape(-1, 2).T
        self.accesses = 0

    def check(self, access: str, addresses: np.ndarray, size: int) -> None:
        """Raise if `size` bytes at any of the addresses are outside of the tensors."""
        self.accesses += addresses.size
        index = np.searchsorted(self.starts, addresses, side="right") - 1
        ends = np.where(index >= 0, self.ends[index], 0)
        outside = addresses[addresses + np.uint64(size) > ends]
        if outside.size:
            raise AddressError(f"{self.kernel}: {access} outside of its tensors, {self.nearest(int(outside[0]))}")

    def nearest(self, address: int) -> str:
        """Describe an address by the nearest tensor."""
        distance, name = min((max(low - address, address - high), n) for n, (low, high) in self.ranges.items())
        low, high = self.ranges[name]
        return f"{distance} bytes {'after' if address >= high else 'before'} {name} ({high - low} bytes)"


def memory_range(x: Tensor) -> tuple[int, int]:
    """Return the addresses from the first to the last element."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


@contextmanager
def checked_addresses(*, products: bool = False) -> Iterator[list[Launch]]:
    """Check every launch inside the context, and list them; without `products`, dot products are skipped.

    No address depends on a product, so the results are wrong and the check is faster.
    """
    launches: list[Launch] = []
    call = CachedKernel.__call__

    def recorded_call(self, grid, tensors, scalars, constants):
        present = {name: x for name, x in zip(self.groups[0]._fields, tensors, strict=True) if x is not None}
        launches.append(Launch(self.kernel.fn.__name__, present))
        call(self, grid, tensors, scalars, constants)

    changes = {name: _checked(name, index, launches) for name, index in ACCESSES.items()}
    if not products:
        changes["create_dot"] = lambda self, a, b, total, *rest: TensorHandle(total.data.copy(), total.dtype.scalar)
    with patch.object(CachedKernel, "__call__", recorded_call), patch.multiple(InterpreterBuilder, **changes):
        yield launches


def _checked(name, mask_index, launches):
    access = getattr(InterpreterBuilder, name)
    first = 1 if name == "create_atomic_rmw" else 0

    def checked_access(self, *arguments):
        pointers, mask = arguments[first], arguments[mask_index]
        size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        active = np.broadcast_to(mask.data, pointers.data.shape)
        launches[-1].check(name.rpartition("_")[2], pointers.data[active].astype(np.uint64), size)
        return access(self, *arguments)

    return checked_access
