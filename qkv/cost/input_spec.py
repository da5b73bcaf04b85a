"""What a module is called with, in words: `float[1,n,768]`, `int[b,n]`.

A number is a size, a letter a size that has a name; bool, int, float (of the module's type) or a type
of torch such as bfloat16 says what is in it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_WRITTEN = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*")
_TYPES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Input:
    """One tensor that a module is called with."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]

    @classmethod
    def parse(cls, text: str) -> "Input":
        """`float[1,n,768]`"""
        match = _WRITTEN.fullmatch(text)
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
    def of(cls, given: "Input | Tensor | str") -> "Input":
        """From words or from a tensor like it."""
        if isinstance(given, Tensor):
            return cls(given.dtype, tuple(given.shape))
        return given if isinstance(given, Input) else cls.parse(given)

    def names(self) -> list[str]:
        """The sizes that have names."""
        return [size for size in self.shape if isinstance(size, str)]

    def sizes(self, values: Mapping[str, Any]) -> list[Any]:
        """The shape with values (whole numbers, or torch's symbols for them) in place of names."""
        for name in self.names():
            if name not in values:
                raise ValueError(f"size {name!r} of input {self} has no value; give it one, such as {name}=128")
        return [values[size] if isinstance(size, str) else size for size in self.shape]

    def make(self, values: Mapping[str, Any], device: str) -> Tensor:
        """Such a tensor; whole numbers and truths are zero, which is a valid token."""
        return torch.zeros(self.sizes(values), dtype=self.dtype, device=device)

    def __str__(self) -> str:
        words = {dtype: word for word, dtype in _TYPES.items()}
        name = words.get(self.dtype, str(self.dtype).removeprefix("torch."))
        return f"{name}[{','.join(map(str, self.shape))}]"


def names_of(inputs: Iterable[Input]) -> list[str]:
    """All names, each once, in the order of their appearance."""
    return list(dict.fromkeys(name for given in inputs for name in given.names()))
