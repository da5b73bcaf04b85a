"""The static files of the page, from the package."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def static_files() -> dict[str, bytes]:
    """Return the contents of all static files by path, such as `screens/atlas.js`."""
    return dict(sorted(_read_folder(files("qkv.web").joinpath("static"), "")))


def _read_folder(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read_folder(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(TYPES)):
            yield prefix + entry.name, entry.read_bytes()
