"""A page to keep: one file with the page and its data. It opens from disk or in a notebook, offline.

The JavaScript modules are the server's. A module of a `file:` page may not import its neighbor, so each becomes a
`data:` address in an import map. Responses are computed beforehand and embedded in base64.
"""

import json
import posixpath
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.storage import write_atomic
from qkv.web.api import respond, saved_queries
from qkv.web.backend import Backend, RunBackend
from qkv.web.external import Layers, TensorBackend, read_layers, read_tokens
from qkv.web.screens.base import Query, Screen
from qkv.web.static_files import static_files
from qkv.web.wire import pack

if TYPE_CHECKING:
    from qkv.web.server import Server

POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"
MAX_BYTES = 64 * 2**20
"""Maximum size of the data in one page, which a browser can open: 12 layers of 12 heads with 330 tokens."""
OPTIONAL_BYTES = 16 * 2**20
"""If the data are larger, only essential screens are saved."""
_IMPORT = re.compile(r'(\bfrom\s+|\bimport\s+)"(\.{1,2}/[a-z_/]+\.js)"')


class SavedPage:
    """The screens for one input. A notebook displays them; `save` writes one file that needs no network or Python."""

    def __init__(self, backend: Backend, params: dict[str, str] | None = None, title: str = "qkv"):
        self.backend = backend
        self.params = params or {}
        self.title = title
        self._html: str | None = None

    def html(self) -> str:
        """Return the page as one HTML document."""
        if self._html is None:
            self._html = build_html(self.title, self._responses())
        return self._html

    def save(self, path: str | Path) -> Path:
        """Write the page atomically."""
        write_atomic(Path(path), self.html().encode())
        return Path(path)

    def _repr_html_(self) -> str:
        """Return a sandboxed frame for a notebook, which may run scripts and save files but reach nothing else."""
        return (
            f'<iframe srcdoc="{escape(self.html(), quote=True)}" sandbox="allow-scripts allow-downloads" '
            'style="width: 100%; height: 760px; border: 0" title="qkv"></iframe>'
        )

    def server(self, port: int = 0) -> "Server":
        """Return a server of this page, which sends one head at a time, so that any size can be shown.

        Its `address` is to be opened in a browser; `run` serves it until Ctrl-C. Needs the extra "web".
        """
        from qkv.web.server import Server  # noqa: PLC0415 - needs the extra "web"

        return Server(self.backend, port)

    def _responses(self) -> dict[str, bytes]:
        """Return the packed responses by key: the essential screens, and of the others those that have room."""
        about = respond(self.backend, "about", self.params)
        kept: dict[str | None, dict[str, bytes]] = {}
        left_out: list[str] = []
        size = 0
        for query, screen in saved_queries(self.backend, self.params):
            name = None if screen is None else screen.name
            if name in left_out or query.name == "about":
                continue
            data = self._packed(query, screen)
            size += len(data or b"")
            if data is None or (screen is not None and not screen.essential and size > OPTIONAL_BYTES):
                # a screen is there as a whole, or not at all
                size -= len(data or b"") + sum(map(len, kept.pop(name, {}).values()))
                left_out.append(str(name))
                continue
            kept.setdefault(name, {})[key(query)] = data
            if size > MAX_BYTES:
                raise ValueError(self._too_large())
        screens = [screen for screen in about.record["screens"] if screen["name"] not in left_out]
        about.record.update(self.params, screens=screens, left_out=left_out)
        whole = {name: data for responses in kept.values() for name, data in responses.items()}
        return {key(Query("about", {})): pack(about), **whole}

    def _packed(self, query: Query, screen: Screen | None) -> bytes | None:
        """Return the packed response; None if the input is too large for a screen that may be left out."""
        try:
            return pack(respond(self.backend, query.name, {**self.params, **query.params}))
        except ValueError:
            if screen is None or screen.essential:
                raise
            return None

    def _too_large(self) -> str:
        is_run = self.backend.model is not None
        return f"the page would hold more than {MAX_BYTES // 2**20} MiB of data; " + (
            "use a shorter text, or `qkv serve`, which sends one head at a time"
            if is_run
            else "show fewer layers, heads or tokens, or use `.server()`, which sends one head at a time"
        )


def look(
    run: str | Path | None = None,
    text: str | None = None,
    *,
    attention: Layers | None = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> SavedPage:
    """Return a page that shows a model at work on a text, or attention weights of any library.

        qkv.look("runs/mine", "attention")
        qkv.look(attention=outputs.attentions, tokens=tokens)

    `attention` has a tensor (1, heads, queries, keys) per layer, as transformers returns them.
    `keys` labels the columns; default: `tokens`.
    """
    if (run is None) == (attention is None):
        raise ValueError("give either a run and a text, or attention= and tokens=")
    if attention is not None:
        if tokens is None or text is not None:
            raise ValueError("attention= needs tokens=, one per row, and takes no other text")
        layers = read_layers(attention)
        return SavedPage(TensorBackend(layers, read_tokens(layers, tokens, keys)), title="attention")
    if text is None or tokens is not None or keys is not None:
        raise ValueError("a run needs a text, and makes its own tokens")
    assert run is not None
    backend = RunBackend(Path(run))
    return SavedPage(backend, {"text": text, "answer": ""}, title=f"{backend.run.name}: {text}")


def key(query: Query) -> str:
    """Return the key of an embedded response; `static/api.js` computes the same."""
    return f"{query.name} {json.dumps(query.params, sort_keys=True, separators=(',', ':'))}"


def build_html(title: str, responses: Mapping[str, bytes]) -> str:
    """Return the page as one HTML document; `responses` are packed, by `key`."""
    files = static_files()
    modules = {
        f"qkv/{name}": "data:text/javascript;base64," + _base64(_with_mapped_imports(name, contents.decode()).encode())
        for name, contents in files.items()
        if name.endswith(".js")
    }
    # base64 has no character that could end a script element, whatever the tokens contain
    embedded = "\n".join(
        f'<script type="text/plain" class="recorded" data-key="{escape(name, quote=True)}">{_base64(data)}</script>'
        for name, data in responses.items()
    )
    body = re.search(r"<body>(.*)</body>", files["index.html"].decode(), re.S)
    assert body is not None
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{files['app.css'].decode()}</style>\n"
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>\n</head>\n'
        f'<body>{body[1]}{embedded}\n<script type="module">import "qkv/main.js";</script>\n</body>\n</html>\n'
    )


def _with_mapped_imports(name: str, source: str) -> str:
    """Replace the relative imports of a module by names of the import map."""
    folder = posixpath.dirname(name)

    def mapped(match: re.Match[str]) -> str:
        return f'{match[1]}"qkv/{posixpath.normpath(posixpath.join(folder, match[2]))}"'

    return _IMPORT.sub(mapped, source)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
