"""Registries: name -> class, extended by installed packages."""

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from qkv.errors import unknown_name_error

Registered = TypeVar("Registered")


class Registry(Generic[Registered]):
    """A table of classes by name, filled by `@table.register("name")`.

    Installed packages that declare an entry point in `group` are imported at the first lookup, so that another package
    can add a class without a change here.
    """

    def __init__(self, what: str, group: str):
        self.what = what
        self.group = group
        self._classes: dict[str, type[Registered]] = {}
        self._plugins_loaded = False

    def register(self, name: str) -> Callable[[type[Registered]], type[Registered]]:
        """Return a class decorator that registers the class as `name`; a second class of that name is an error."""

        def add(cls: type[Registered]) -> type[Registered]:
            present = self._classes.setdefault(name, cls)
            if present is not cls:
                raise ValueError(f"{self.what} {name!r} is already {present.__module__}.{present.__qualname__}")
            cls.kind = name  # type: ignore[attr-defined]
            return cls

        return add

    def __getitem__(self, name: str) -> type[Registered]:
        self._load_plugins()
        if name not in self._classes:
            raise unknown_name_error(self.what, name, self._classes)
        return self._classes[name]

    def holds(self, name: str, cls: type) -> bool:
        """Return whether `cls` itself, not a subclass, is registered as `name`."""
        return self._classes.get(name) is cls

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(tuple(self._classes))

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:  # noqa: BLE001 - a broken plugin must not break the library
                warnings.warn(
                    f"{self.what} plugin {point.name!r} ({point.value}) failed to load: {error}", stacklevel=3
                )
