"""A Triton kernel launched again without being looked up again.

Triton finds the compiled form of a kernel by all its arguments, which takes longer than some of ours run. Here it is
kept under what it depends on: constants, sizes, types, and whether memory begins at a multiple of 16 bytes.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.runtime.errors import OutOfResources

Grid = tuple[int, int, int]
KEPT = 4096
"""Compiled forms that a kernel remembers: each length of a sequence is one."""


@dataclass(frozen=True, eq=False)
class Constants:
    """What a kernel is compiled with. One object for one set, since it is looked up by identity."""

    values: dict[str, Any]
    options: dict[str, int | None]
    """For the compiler."""


class Relaunched:
    """A kernel that takes its tensors first, then its numbers, then its constants."""

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, grid: Grid, tensors: tuple[Tensor | None, ...], numbers: tuple[float, ...], constants: Constants
    ) -> None:
        """Launch it; interpreted, it has no compiled form and is always asked anew."""
        # addresses instead of tensors: of each of those Triton would ask the driver where it lies
        places = [None if x is None else x.data_ptr() for x in tensors]
        kinds = [None if x is None else (x.device, x.dtype, x.data_ptr() & 15) for x in tensors]
        key = (constants, grid, numbers, *kinds)
        found = self._compiled.get(key)
        if found is not None:
            launch, values = found
            launch(*places, *numbers, *values)
            return
        compiled = self._launched_first(grid, (*tensors, *numbers), constants)
        if compiled is None:
            return
        if len(self._compiled) >= KEPT:
            self._compiled.clear()
        names = self.kernel.arg_names[len(tensors) + len(numbers) :]
        self._compiled[key] = compiled[grid], tuple(constants.values[name] for name in names)

    def _launched_first(self, grid: Grid, arguments: tuple[Any, ...], constants: Constants) -> Any:
        """As it was measured to be fastest or, on a chip without room for that, with one load under way at a time."""
        options = constants.options
        try:
            return self.kernel[grid](*arguments, **constants.values, **options)
        except OutOfResources as error:
            if options.get("num_stages") == 1:
                raise ValueError(
                    f"this chip has not enough {error.name} for the kernels at these sizes ({error.required} are "
                    f"needed, {error.limit} are there); backend='chunked' takes them, as bfloat16 may"
                ) from error
        return self._launched_first(grid, arguments, Constants(constants.values, {**options, "num_stages": 1}))
