"""Input specifications such as `float[1,n,768]` or `int[b,n]`: a dtype and a shape with named sizes.

A size is an integer or a name. The dtype is bool, int, float or a torch dtype such as bfloat16.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PATTERN = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*")
_TYPES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Input:
    """One tensor argument of a module: dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]

    @classmethod
    def parse(cls, text: str) -> "Input":
        """Read a specification such as `float[1,n,768]`."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"input {text!r}: expected a type and sizes, such as float[1,n,768] or int[1,n]")
        dtype = _TYPES.get(match[1], getattr(torch, match[1], None))
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"input {text!r}: there is no type {match[1]!r}; use float, int, bool or one of torch's")
        sizes = [size.strip() for size in match[2].split(",")] if match[2].strip() else []
        for size in sizes:
            if not (size.isdigit() or size.isidentifier()):
                raise ValueError(f"input {text!r}: {size!r} is neither a size nor a name for one")
        return cls(dtype, tuple(int(size) if size.isdigit() else size for size in sizes))

    @classmethod
    def from_value(cls, given: "Input | Tensor | str") -> "Input":
        """Return the specification of a text or of an example tensor."""
        if isinstance(given, Tensor):
            return cls(given.dtype, tuple(given.shape))
        return given if isinstance(given, Input) else cls.parse(given)

    def size_names(self) -> list[str]:
        """Return the named sizes."""
        return [size for size in self.shape if isinstance(size, str)]

    def resolve_shape(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the shape with `values` (integers or torch's SymInt) in place of names."""
        for name in self.size_names():
            if name not in values:
                raise ValueError(f"size {name!r} of input {self} has no value; give it one, such as {name}=128")
        return [values[size] if isinstance(size, str) else size for size in self.shape]

    def make_tensor(self, values: Mapping[str, Any], device: str) -> Tensor:
        """Return a tensor of zeros; 0 is also a valid token."""
        return torch.zeros(self.resolve_shape(values), dtype=self.dtype, device=device)

    def __str__(self) -> str:
        words = {dtype: word for word, dtype in _TYPES.items()}
        name = words.get(self.dtype, str(self.dtype).removeprefix("torch."))
        return f"{name}[{','.join(map(str, self.shape))}]"


def size_names(inputs: Iterable[Input]) -> list[str]:
    """Return all size names, each once, in order of appearance."""
    return list(dict.fromkeys(name for given in inputs for name in given.size_names()))
