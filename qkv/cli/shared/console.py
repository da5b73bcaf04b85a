"""What commands print: tables for people, JSON with stable keys for programs."""

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(records: Any) -> None:
    """Records on stdout; NaN and inf, which JSON has no word for, become null."""
    sys.stdout.write(json.dumps(_finite(records), indent=1, allow_nan=False) + "\n")


def console(*, stderr: bool = False) -> Console:
    """Where tables go; wide enough for them when nobody looks."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=160)


def write_count(value: int | None) -> str:
    """A whole number in groups of three digits; a dash where there is none."""
    return "-" if value is None else f"{value:,}"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
