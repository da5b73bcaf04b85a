"""A worked problem: a question, the lines of Python that answer it, and what somebody once wrote by hand.

A problem is a function. Its docstring is the question and its body is the call, so what is shown to be copied is what
is run; that is why every body imports what it needs.
"""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from textwrap import dedent
from typing import Any

from qkv.problems.expectation import Answer, Expected, meets
from qkv.storage import QkvError


@dataclass(frozen=True)
class Solution:
    """A problem, answered."""

    id: str
    question: str
    call: str | None
    """Python that sets `answer`; None: the problem is open."""
    answer: Answer | None
    hand_written: str
    slip: str | None
    """What is wrong with the hand-written answer; None: nothing."""
    ok: bool | None
    """Whether the computed answer meets its literals; None: the problem is open."""

    def to_record(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Problem:
    """A question with what is known of its answer."""

    id: str
    question: str
    hand_written: str
    slip: str | None
    expected: Expected
    compute: Callable[[], Answer] | None
    """None: the library cannot answer it yet."""
    slow: bool = False
    """Whether something is trained or resampled for it."""

    @property
    def call(self) -> str | None:
        """The body of the function, its last line `answer = ...` where that returns."""
        return None if self.compute is None else _body(self.compute)

    def solve(self) -> Solution:
        """Compute the answer and hold it against its literals.

        Where data or an extra are missing, the answer says so and is not ok: the other problems are still answered.
        """
        try:
            answer = None if self.compute is None else _apart(self.compute)
        except QkvError as error:
            answer = {"not computed": str(error)}
        ok = None if answer is None else meets(answer, self.expected)
        return Solution(self.id, self.question, self.call, answer, self.hand_written, self.slip, ok)


entered: dict[str, Problem] = {}
"""Id -> problem, as the files of the groups enter them."""


def answers(
    id: str,  # noqa: A002 - what it is called in every document
    *,
    hand_written: str,
    slip: str | None = None,
    expected: Expected,
    slow: bool = False,
) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Function decorator: this function answers the problem of this id."""

    def enter(compute: Callable[[], Answer]) -> Callable[[], Answer]:
        question = inspect.cleandoc(compute.__doc__ or "")
        entered[id] = Problem(id, question, hand_written, slip, expected, compute, slow)
        return compute

    return enter


def leave_open(id: str, question: str, hand_written: str, slip: str | None = None) -> None:  # noqa: A002
    """List a problem that the library cannot answer yet."""
    entered[id] = Problem(id, question, hand_written, slip, {}, None)


def _apart(compute: Callable[[], Answer]) -> Answer:
    """The answer, with nothing changed outside: on one thread, since the tensors are small, and with its own random."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return compute()
    finally:
        torch.set_num_threads(threads)


def _body(function: Callable[[], Answer]) -> str:
    source = dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    last = definition.body[-1]
    assert isinstance(last, ast.Return)
    lines = source.splitlines()
    # from the line after the docstring, so that comments between the statements stay
    start = definition.body[0].end_lineno
    head = dedent("\n".join(lines[start : last.lineno - 1]))
    tail = dedent("\n".join(lines[last.lineno - 1 :])).replace("return ", "answer = ", 1)
    return re.sub(r"  # (type: ignore|noqa)\S*", "", f"{head}\n{tail}\n")  # said to our tools, not to readers
