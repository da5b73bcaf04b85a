"""An extension of griffe, which reads the docstrings of the reference: show `>>>` examples as highlighted code."""

import re

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n[^\n]+)*", re.M)


class Doctests(griffe.Extension):
    """Put each block of `>>>` lines, with its output, into a code fence."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change the docstring of one object; others have no examples."""
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(docstring: str) -> str:
    """Return a docstring with fences around its examples."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
