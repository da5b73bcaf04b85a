"""All worked problems, in the order of their ids."""

from qkv.problems import (  # noqa: F401 - they enter theirs
    attention,
    cost,
    detection,
    gradients,
    linear,
    pretraining,
    sequences,
    units,
)
from qkv.problems.record import Problem, entered
from qkv.registry import unknown_name_error


def _place(name: str) -> tuple[str, int]:
    return name[0], int(name[1:])


problems: dict[str, Problem] = {name: entered[name] for name in sorted(entered, key=_place)}
"""Id -> problem."""


def problem(id: str) -> Problem:  # noqa: A002 - what it is called in every document
    """The problem of this id, in any case of letters; an unknown one is an error that says the nearest."""
    found = problems.get(id.strip().upper())
    if found is None:
        raise unknown_name_error("problem", id.strip().upper(), problems)
    return found
