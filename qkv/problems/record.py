"""A worked problem: a question, the Python code that answers it, and an answer written by hand.

A problem is a function. Its docstring is the question and its body is the code that is shown, so what readers copy is
what runs; therefore every body imports what it needs.
"""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from textwrap import dedent
from typing import Any

from qkv.errors import QkvError
from qkv.problems.expectation import Answer, Expected, meets

NOT_COMPUTED = "not computed"
"""Only key of an answer that lacks its data or an extra; the value is the reason."""


@dataclass(frozen=True)
class Solution:
    """A problem and its computed answer."""

    id: str
    question: str
    call: str
    """Python code that sets `answer`."""
    answer: Answer
    hand_written: str
    slip: str | None
    """Correction of a mistake in the hand-written answer; None: it has none."""
    ok: bool
    """Whether the computed answer is as expected."""

    @property
    def reason_not_computed(self) -> str | None:
        """What was missing, such as a package; None: the answer was computed."""
        return self.answer.get(NOT_COMPUTED)

    def to_record(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Problem:
    """A question, its hand-written answer, and what is expected of the computed one."""

    id: str
    question: str
    hand_written: str
    slip: str | None
    expected: Expected
    compute: Callable[[], Answer]
    """Function that computes the answer."""
    slow: bool = False
    """Whether solving it trains or resamples."""

    @property
    def call(self) -> str:
        """Body of the function as code, with `answer = ...` instead of its return."""
        return _source_of_body(self.compute)

    def solve(self) -> Solution:
        """Compute the answer and compare it with the expected values.

        If data or an extra is missing, the answer is the error and is not ok; other problems are not affected.
        """
        try:
            answer = _run_isolated(self.compute)
        except QkvError as error:
            answer = {NOT_COMPUTED: str(error)}
        ok = meets(answer, self.expected)
        return Solution(self.id, self.question, self.call, answer, self.hand_written, self.slip, ok)


registered: dict[str, Problem] = {}
"""Id -> problem, in order of registration."""


def register_problem(
    id: str,  # noqa: A002 - the name in every document
    *,
    hand_written: str,
    slip: str | None = None,
    expected: Expected,
    slow: bool = False,
) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Return a decorator that registers a function as the solution of the problem with this id."""

    def register(compute: Callable[[], Answer]) -> Callable[[], Answer]:
        question = inspect.cleandoc(compute.__doc__ or "")
        registered[id] = Problem(id, question, hand_written, slip, expected, compute, slow)
        return compute

    return register


def _run_isolated(compute: Callable[[], Answer]) -> Answer:
    """Compute on one thread, since the tensors are small, and restore torch's threads and random state."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return compute()
    finally:
        torch.set_num_threads(threads)


def _source_of_body(function: Callable[[], Answer]) -> str:
    source = dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    last = definition.body[-1]
    assert isinstance(last, ast.Return)
    lines = source.splitlines()
    # start after the docstring, so that comments between statements are kept
    start = definition.body[0].end_lineno
    head = dedent("\n".join(lines[start : last.lineno - 1]))
    tail = dedent("\n".join(lines[last.lineno - 1 :])).replace("return ", "answer = ", 1)
    return re.sub(r"  # (type: ignore|noqa)\S*", "", f"{head}\n{tail}\n")  # directives for our tools
