import pytest

from qkv.problems.value_text import format_value


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (False, "no"), (None, "-"), (1234567, "1,234,567"), (2 / 3, "0.666667"), ("a\nb", "a\nb")],
)
@pytest.mark.parametrize("lines", [True, False])
def test_single_values(value, text, lines):
    assert format_value(value, 3, lines=lines) == text


def test_long_lists():
    numbers = list(range(1000, 1007))
    for lines in (True, False):
        assert format_value(numbers, 3, lines=lines) == "1,000, 1,001, 1,002, ... 4 more"
        assert format_value(numbers[:3], 3, lines=lines) == "1,000, 1,001, 1,002"
        assert format_value([], 3, lines=lines) == ""


def test_lines_for_a_screen():
    assert format_value([[1, 2], {"a": 3, "b": 4}, 5], 2, lines=True) == "1, 2\na: 3, b: 4\n... 1 more"
    assert format_value({"a": [1, 2, 3], "b": None}, 4, lines=True) == "a: 1, 2, ... 1 more\nb: -"


def test_one_line_for_a_cell():
    assert format_value([[1, 2], {"a": 3, "b": 4}, 5], 2, lines=False) == "(1, 2), (a: 3; b: 4), ... 1 more"
    assert format_value({"a": [1, 2, 3], "b": None}, 4, lines=False) == "a: 1, 2, ... 1 more; b: -"
