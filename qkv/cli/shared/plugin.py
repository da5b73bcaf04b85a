"""`--plugin module`: kinds of somebody else's, registered when their module is imported."""

import sys
from importlib import import_module
from typing import Annotated

import typer

Plugin = Annotated[
    list[str] | None,
    typer.Option(help="Import this module first; it may register kinds. Repeatable.", metavar="MODULE"),
]


def load(modules: list[str] | None) -> None:
    """Import each module, found as `python -m` would find it from here."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    for module in modules or []:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"--plugin {module}: no module named {error.name!r} here or in this environment"
            ) from error
