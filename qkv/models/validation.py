"""Sizes that make sense."""

from typing import Any


def require_at_least(least: int, config: Any, *names: str) -> None:
    """Raise for the first of these fields that is smaller."""
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}")


def require_length(length: int, max_length: int) -> None:
    """Refuse a sequence that is too long."""
    if length > max_length:
        raise ValueError(f"a sequence of {length} exceeds max_length={max_length}")
