"""Table of the data sets that ship with the package.

    for name, entry in datasets.items():
        print(name, entry.description)

A new data set is one file in `qkv/data/corpora` with `@register_dataset("name")` above its loader, and one export line
in `qkv/data/__init__.py`. Its description is the first line of the loader's docstring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Loader = TypeVar("Loader", bound=Callable[..., Any])


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name, and the function or class that loads or generates it."""

    name: str
    load: Callable[..., Any]

    @property
    def description(self) -> str:
        """First line of the loader's docstring."""
        return (self.load.__doc__ or "").strip().partition("\n")[0]


datasets: dict[str, DatasetEntry] = {}
"""Name -> entry, in the order in which `qkv.data` exports the data sets."""


def register_dataset(name: str) -> Callable[[Loader], Loader]:
    """Return a decorator that adds a loader to `datasets`; raise if the name is taken or the docstring is missing."""

    def register(load: Loader) -> Loader:
        entry = DatasetEntry(name, load)
        if not entry.description:
            raise ValueError(f"data set {name!r} needs a docstring on its loader, which describes it")
        if datasets.setdefault(name, entry).load is not load:
            raise ValueError(f"data set {name!r} is already registered")
        return load

    return register
