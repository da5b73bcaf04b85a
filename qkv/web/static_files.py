"""The static files of the page, from the package."""

from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def static_files() -> dict[str, bytes]:
    """Return the contents of all static files by name."""
    folder = files("qkv.web").joinpath("static")
    known = [entry for entry in folder.iterdir() if entry.name.endswith(tuple(TYPES))]
    return {entry.name: entry.read_bytes() for entry in sorted(known, key=lambda entry: entry.name)}
