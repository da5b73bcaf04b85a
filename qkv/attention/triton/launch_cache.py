"""Launch a Triton kernel again without Triton's lookup.

Triton finds the compiled form of a kernel by all its arguments, which takes longer than some of the kernels here run.
Instead it is cached under what it depends on: constants, sizes, types, and whether memory is aligned to 16 bytes.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.runtime.errors import OutOfResources

Grid = tuple[int, int, int]
MAX_CACHED_LAUNCHES = 4096
"""Cached launches per kernel; each sequence length adds one."""


@dataclass(frozen=True, eq=False)
class Constants:
    """Compile-time arguments and compiler options of a kernel. One object per set, since it is compared by identity."""

    values: dict[str, Any]
    options: dict[str, int | None]
    """Compiler options."""


class CachedKernel:
    """A kernel that takes a tuple of tensors, then scalars or tuples of scalars, then its constants.

    `groups` are the types of these arguments. The caller passes plain tuples, since naming their fields takes host
    time; only the compiler needs the names.
    """

    def __init__(self, kernel: Any, *groups: Any):
        self.kernel = kernel
        self.groups = groups
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, grid: Grid, tensors: tuple[Tensor | None, ...], scalars: tuple[Any, ...], constants: Constants
    ) -> None:
        """Launch the kernel; an interpreted one has no compiled form to cache."""
        # addresses instead of tensors: Triton would query the driver for the address of each tensor
        addresses = tuple([None if x is None else x.data_ptr() for x in tensors])
        tensor_types = [None if x is None else (x.device, x.dtype, x.data_ptr() & 15) for x in tensors]
        key = (constants, grid, scalars, *tensor_types)
        cached = self._compiled.get(key)
        if cached is not None:
            launch, values = cached
            launch(addresses, *scalars, *values)
            return
        named = tuple(map(_named, self.groups, (tensors, *scalars)))
        compiled = self._launch_first(grid, named, constants)
        if compiled is None:
            return
        if len(self._compiled) >= MAX_CACHED_LAUNCHES:
            self._compiled.clear()
        names = self.kernel.arg_names[1 + len(scalars) :]
        self._compiled[key] = compiled[grid], tuple(constants.values[name] for name in names)

    def _launch_first(self, grid: Grid, arguments: tuple[Any, ...], constants: Constants) -> Any:
        """Compile and launch as tuned; on a GPU without room for that, with one load in flight at a time."""
        options = constants.options
        try:
            return self.kernel[grid](*arguments, **constants.values, **options)
        except OutOfResources as error:
            if options.get("num_stages") == 1:
                raise ValueError(
                    f"this GPU has not enough {error.name} for the kernels at these sizes ({error.required} needed, "
                    f"{error.limit} available); use backend='chunked', or try bfloat16"
                ) from error
        return self._launch_first(grid, arguments, Constants(constants.values, {**options, "num_stages": 1}))


def _named(group: Any, values: Any) -> Any:
    """Return a tuple as a NamedTuple of type `group`, its fields likewise; other values are returned unchanged."""
    if not isinstance(values, tuple):
        return values
    fields = [group.__annotations__[name] for name in group._fields]
    return group(*map(_named, fields, values))
