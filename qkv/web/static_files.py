"""The files of the page, as they lie in the package."""

from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def static_files() -> dict[str, bytes]:
    """Name -> contents, all of them."""
    folder = files("qkv.web").joinpath("static")
    known = [entry for entry in folder.iterdir() if entry.name.endswith(tuple(TYPES))]
    return {entry.name: entry.read_bytes() for entry in sorted(known, key=lambda entry: entry.name)}
