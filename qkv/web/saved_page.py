"""One file that holds the page and its numbers: it opens from a disk, in a notebook, years from now, offline.

The modules are those of the server. A module of a `file:` page may not import its neighbor, so each becomes a
`data:` address in an import map; answers are recorded beforehand and stand in the file in base64.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import Any

from qkv.web.static_files import static_files

POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"
_IMPORT = re.compile(r'(\bfrom\s+|\bimport\s+)"\./([a-z_]+\.js)"')


def key(name: str, asked: Mapping[str, Any]) -> str:
    """What a recorded answer is found by; `source.js` makes the same text."""
    return f"{name} {json.dumps(dict(asked), sort_keys=True, separators=(',', ':'))}"


def self_contained(title: str, answers: Mapping[str, bytes]) -> str:
    """The page as one HTML text; `answers` are packed, by `key`."""
    files = static_files()
    modules = {
        f"qkv/{name}": "data:text/javascript;base64," + _base64(_IMPORT.sub(r'\1"qkv/\2"', contents.decode()).encode())
        for name, contents in files.items()
        if name.endswith(".js")
    }
    # base64 has no character that could end a script element, whatever a token says
    recorded = "\n".join(
        f'<script type="text/plain" class="recorded" data-key="{escape(name, quote=True)}">{_base64(data)}</script>'
        for name, data in answers.items()
    )
    body = re.search(r"<body>(.*)</body>", files["index.html"].decode(), re.S)
    assert body is not None
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{files['app.css'].decode()}</style>\n"
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>\n</head>\n'
        f'<body>{body[1]}{recorded}\n<script type="module">import "qkv/main.js";</script>\n</body>\n</html>\n'
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
