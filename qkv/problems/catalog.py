"""All worked problems, in the order of their ids."""

from qkv.errors import unknown_name_error
from qkv.problems import (  # noqa: F401 - importing registers their problems
    attention,
    cost,
    detection,
    gradients,
    linear,
    pretraining,
    sequences,
    units,
)
from qkv.problems.record import Problem, registered


def _sort_key(name: str) -> tuple[str, int]:
    return name[0], int(name[1:])


problems: dict[str, Problem] = {name: registered[name] for name in sorted(registered, key=_sort_key)}
"""Id -> problem."""


def problem(id: str) -> Problem:  # noqa: A002 - the name in every document
    """Return the problem of this id, in either case; raise for an unknown one, naming the nearest."""
    found = problems.get(id.strip().upper())
    if found is None:
        raise unknown_name_error("problem", id.strip().upper(), problems)
    return found
