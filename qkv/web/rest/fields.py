"""Read and check the fields of a request; a wrong one is an ApiError that names it.

`null` stands for the default, as in OpenAI's API. A field that no route knows is an error, and so is a known one that
this server does not act on, unless it has its neutral value: nothing is silently ignored.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from qkv.errors import nearest_name
from qkv.web.rest.errors import ApiError

MAX_SHOWN = 60
"""Characters of a value that a message repeats."""


class Fields:
    """The fields of one request."""

    def __init__(self, record: dict[str, Any], known: Collection[str]):
        self.record = record
        for name in record:
            if name not in known:
                near = nearest_name(name, known)
                hint = f"; did you mean {near!r}?" if near else f" (there are: {', '.join(sorted(known))})"
                raise ApiError(f"unknown field {shorten(name)}{hint}", param=name[:60], code="unknown_field")

    def get(self, name: str) -> Any:
        """Return a value as it came; None: not given."""
        return self.record.get(name)

    def integer(self, name: str, default: int | None, low: int, high: int) -> Any:
        """Return an integer from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float | None, low: float, high: float) -> Any:
        """Return a finite number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is in no range
            raise self.wrong(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str) -> bool:
        """Return true or false; default: false."""
        value = self.get(name)
        if value is not None and type(value) is not bool:
            raise self.wrong(name, "must be true or false")
        return bool(value)

    def choice(self, name: str, default: str | None, choices: Collection[str]) -> Any:
        """Return one of the choices."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"must be one of {', '.join(choices)}")
        return value

    def record_of(self, name: str, known: Collection[str]) -> "Fields":
        """Return the fields of an object."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Fields(value or {}, known)

    def one_or_many(self, name: str, most: int, check: Callable[[Any], bool], what: str) -> list[Any]:
        """Return a list of values; one value is a list of one."""
        value = self.get(name)
        if value is None:
            raise ApiError(f"the field {name!r} is missing", param=name, code="missing_field")
        values = value if isinstance(value, list) and not check(value) else [value]
        if not 1 <= len(values) <= most:
            raise ApiError(f"{name} must have 1 to {most:,} entries, got {len(values):,}", param=name)
        for one in values:
            if not check(one):
                raise ApiError(f"{name} must be {what}, or a list of them, got {_measure(one)}", param=name)
            require_unicode(name, one)
        return values

    def require_neutral(self, name: str, values: Iterable[Any]) -> None:
        """Raise unless a field that has no effect here has one of its neutral values."""
        value = self.get(name)
        is_neutral = any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
        if value is not None and not is_neutral:  # true is not 1
            raise self.wrong(name, "is not supported by this server; leave it out")

    def wrong(self, name: str, expected: str) -> ApiError:
        """Return the error of a wrong value."""
        return ApiError(f"{name} {expected}, got {shorten(self.get(name))}", param=name, code="invalid_value")


def require_unicode(name: str, value: Any) -> None:
    """Raise for a text with half a surrogate pair, which has no UTF-8."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ApiError(f"{name} is not valid Unicode: it has half a surrogate pair", param=name)


def require_model(fields: Fields, name: str) -> None:
    """Raise unless the field `model` is the name of the run, or missing."""
    value = fields.get("model")
    if value is not None and value != name:
        message = f"there is no model {shorten(value)} here; this server has {name!r}"
        raise ApiError(message, status=404, param="model", code="model_not_found")


def _measure(value: Any) -> str:
    """Return a value as `shorten` does, a long string by its length."""
    is_long = isinstance(value, str) and len(value) > MAX_SHOWN
    return f"{len(value):,} characters" if is_long else shorten(value)


def shorten(value: Any) -> str:
    """Return a value as a message shows it."""
    text = ascii(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
