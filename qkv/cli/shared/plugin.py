"""The option `--plugin MODULE`: attention kinds of other packages, registered when the module is imported."""

import sys
from importlib import import_module
from typing import Annotated

import typer

Plugin = Annotated[
    list[str] | None,
    typer.Option(help="Import this module first, to register its attention kinds; repeatable.", metavar="MODULE"),
]


def load_plugins(modules: list[str] | None) -> None:
    """Import each module, searched in the current folder first, as `python -m` does."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    for module in modules or []:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"--plugin {module}: no module named {error.name!r} in this folder or environment"
            ) from error
