"""Name -> class: what the command line, the tests and the tables find by a word."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Generic, TypeVar

Registered = TypeVar("Registered")


def unknown_name_error(what: str, name: object, names: Iterable[str]) -> ValueError:
    """The error for a word that names nothing: it says the nearest right one, and all of them."""
    names = sorted(names)
    nearest = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ValueError(f"unknown {what} {name!r}{hint} (there are: {', '.join(names)})")


class Registry(Generic[Registered]):
    """A table that fills itself: `@table.register("name")` from here, an entry point from elsewhere.

    Installed packages that declare an entry point in `group` are loaded at the first look-up,
    so a kind of somebody else's needs no edit of ours.
    """

    def __init__(self, what: str, group: str):
        self.what = what
        self.group = group
        self._classes: dict[str, type[Registered]] = {}
        self._plugins_loaded = False

    def register(self, name: str) -> Callable[[type[Registered]], type[Registered]]:
        """Class decorator: enter the class under `name`; a second class of that name is an error."""

        def enter(cls: type[Registered]) -> type[Registered]:
            present = self._classes.setdefault(name, cls)
            if present is not cls:
                raise ValueError(f"{self.what} {name!r} is already {present.__module__}.{present.__qualname__}")
            cls.kind = name  # type: ignore[attr-defined]
            return cls

        return enter

    def __getitem__(self, name: str) -> type[Registered]:
        self._load_plugins()
        if name not in self._classes:
            raise unknown_name_error(self.what, name, self._classes)
        return self._classes[name]

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
            except Exception as error:  # noqa: BLE001 - somebody else's package must not break ours
                warnings.warn(
                    f"{self.what} plugin {point.name!r} ({point.value}) failed to load: {error}", stacklevel=3
                )
