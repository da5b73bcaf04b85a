"""Format values of an answer for people: over several lines for a screen, on one line for a table cell."""

from typing import Any


def format_value(value: Any, max_items: int, *, lines: bool) -> str:
    """Format a value; long lists end after `max_items`, nested ones after half as many."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        named = [f"{name}: {format_value(item, max_items // 2, lines=lines)}" for name, item in value.items()]
        return ("\n" if lines else "; ").join(named)
    if isinstance(value, list):
        return _format_list(value, max_items, lines=lines)
    return str(value)


def _format_list(values: list[Any], most: int, *, lines: bool) -> str:
    """Format nested lists on a line each, or in parentheses."""
    nested = any(isinstance(item, list | dict) for item in values)
    items = []
    for item in values[:most]:
        text = format_value(item, most, lines=lines).replace("\n", ", ")
        items.append(f"({text})" if isinstance(item, list | dict) and not lines else text)
    if len(values) > most:
        items.append(f"... {len(values) - most:,} more")
    return ("\n" if nested and lines else ", ").join(items)
