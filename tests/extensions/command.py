"""`qkv greet`, as an example of a command."""

from typing import Annotated

import typer

from qkv.cli.shared.console import console


def greet(name: Annotated[str, typer.Argument(help="Whom to greet.")]) -> None:
    """Greet somebody."""
    console().print(f"hello, {name}")
