"""A value of an answer as a person would write it: over several lines for a screen, on one for a cell of a table."""

from typing import Any


def write_value(value: Any, most: int, *, lines: bool) -> str:
    """Yes and no, 1,234 and six digits; of a long list the first `most`, within named values half as many."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        named = [f"{name}: {write_value(item, most // 2, lines=lines)}" for name, item in value.items()]
        return ("\n" if lines else "; ").join(named)
    if isinstance(value, list):
        return _write_list(value, most, lines=lines)
    return str(value)


def _write_list(values: list[Any], most: int, *, lines: bool) -> str:
    """Lists in a list have a line each, or brackets."""
    nested = any(isinstance(item, list | dict) for item in values)
    items = []
    for item in values[:most]:
        text = write_value(item, most, lines=lines).replace("\n", ", ")
        items.append(f"({text})" if isinstance(item, list | dict) and not lines else text)
    if len(values) > most:
        items.append(f"... {len(values) - most:,} more")
    return ("\n" if nested and lines else ", ").join(items)
