"""The frame of an HTML page that is self-contained and inert: no scripts, no requests, one style sheet."""

from base64 import b64encode
from hashlib import sha256

from qkv.draw.style import STYLE
from qkv.draw.text import escape_text, shorten

_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()


def html_page(title: str, header: str, content: str, *, images: str = "data:") -> str:
    """Return a page; `header` and `content` are HTML, `images` the sources that its content security policy allows."""
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src {images}; base-uri 'none'; form-action 'none'"
    )
    title = escape_text(shorten(title, 200))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
{header}
</header>
{content}</main>
</body>
</html>
"""
