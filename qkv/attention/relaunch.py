"""A Triton kernel launched again without being looked up again.

Triton finds the compiled form of a kernel by all its arguments, which takes longer than some of ours run. Here it is
kept under what it depends on: constants, sizes, types, and whether memory begins at a multiple of 16 bytes.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

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
        compiled = self.kernel[grid](*tensors, *numbers, **constants.values, **constants.options)
        if compiled is None:
            return
        if len(self._compiled) >= KEPT:
            self._compiled.clear()
        names = self.kernel.arg_names[len(tensors) + len(numbers) :]
        self._compiled[key] = compiled[grid], tuple(constants.values[name] for name in names)
