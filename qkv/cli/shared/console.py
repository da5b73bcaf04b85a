"""Output of commands: tables for people, JSON with stable keys for programs."""

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from qkv.cli.shared.visible import visible
from qkv.storage.json import finite_values

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(records: Any) -> None:
    """Write a value to stdout as JSON."""
    sys.stdout.write(format_json(records))


def format_json(records: Any) -> str:
    """Format a value as JSON; NaN and inf, which JSON does not have, become null."""
    return json.dumps(finite_values(records), indent=1, allow_nan=False) + "\n"


class VisibleConsole(Console):
    """A console that makes control characters in texts and cells visible."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the rich text of a plain text."""
        return super().render_str(visible(text), **options)


def console(*, stderr: bool = False) -> Console:
    """Return the console for tables: as wide as COLUMNS says, else as the terminal, else 160 columns."""
    found = VisibleConsole(stderr=stderr, highlight=False)
    if found.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return found
    return VisibleConsole(stderr=stderr, highlight=False, width=160)


def format_count(value: int | None) -> str:
    """Format an integer in groups of three digits; None as a dash."""
    return "-" if value is None else f"{value:,}"
