"""The look of `--help`: capital placeholders, none after a flag, and one form of defaults."""

import re
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

_PLACEHOLDERS = {"int": "INTEGER", "float": "FLOAT", "str": "TEXT", "Path": "PATH"}
_DEFAULT = re.compile(r" \(default: (.*)\)\.$", re.DOTALL)
"""A default that depends on something, as help texts in the code end with it."""


class _Style:
    """Overrides of a command that give its help the style of this program."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, `--help` included."""
        return [_style(parameter) for parameter in super().get_params(ctx)]  # type: ignore[misc]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: RUN is required, [INPUT] is not."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in pieces]


class HelpCommand(_Style, TyperCommand):
    """A command with help in the style of this program."""


class HelpGroup(_Style, TyperGroup):
    """A command with subcommands, in the same style."""


def _style(parameter: Any) -> Any:
    """Set the placeholder of a parameter that has none, and the form of its default; return the parameter."""
    if parameter.param_type_name == "argument":
        if parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
        parameter.display_type_rich = lambda ctx: _choices(parameter)
    elif parameter.metavar is None:
        parameter.metavar = _placeholder(parameter)
    if parameter.help:
        parameter.help = _DEFAULT.sub(r". \\[default: \1]", parameter.help)
    return parameter


def _placeholder(option: Any) -> str | None:
    """Return the placeholder of an option's value; empty for a flag, None to keep typer's own."""
    if option.is_flag:
        return ""
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    (element, *_) = (*get_args(annotation), annotation)  # the type of one value of a list
    return _PLACEHOLDERS.get(getattr(element, "__name__", ""))


def _choices(argument: Any) -> str | None:
    """Return the names that an argument may have; None: any text."""
    choices = argument.type_descriptor.choices
    return "|".join(str(getattr(choice, "value", choice)) for choice in choices) if choices else None
