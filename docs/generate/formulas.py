"""Formulas in LaTeX between lines of `$$`, converted to MathML when the site is built: no script in the browser."""

import re

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.M | re.S)


def to_mathml(text: str) -> str:
    """Return Markdown `text` with each `$$` block as MathML, one element per line of the block."""
    return _BLOCK.sub(lambda found: _element(found[1]), text)


def _element(lines: str) -> str:
    formulas = [convert(line, display="block") for line in lines.splitlines()]
    return f'<div class="formula">{"".join(formulas)}</div>'
