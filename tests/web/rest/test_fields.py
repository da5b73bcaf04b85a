import pytest

from qkv.web.rest.errors import ApiError
from qkv.web.rest.fields import Fields, shorten

KNOWN = ("a", "b", "text")


def test_null_is_the_default():
    fields = Fields({"a": None}, KNOWN)
    assert fields.integer("a", 7, 1, 9) == 7
    assert fields.number("a", 0.5, 0, 1) == 0.5
    assert fields.boolean("a") is False
    assert fields.choice("a", "x", ("x", "y")) == "x"
    assert fields.integer("b", None, 1, 9) is None


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, 10, [1]])
def test_integers(value):
    with pytest.raises(ApiError, match="a must be a whole number from 1 to 9, got"):
        Fields({"a": value}, KNOWN).integer("a", 7, 1, 9)


@pytest.mark.parametrize(
    "value", [True, "1", -0.1, 1.1, float("inf"), float("nan"), 10**400], ids=lambda value: repr(value)[:8]
)
def test_numbers(value):
    with pytest.raises(ApiError, match="a must be a number from 0 to 1, got"):
        Fields({"a": value}, KNOWN).number("a", 0.5, 0, 1)


def test_one_or_many():
    def texts(value):
        return Fields({"text": value}, KNOWN).one_or_many("text", 2, lambda one: isinstance(one, str), "a string")

    assert texts("x") == ["x"]
    assert texts(["x", "y"]) == ["x", "y"]
    for wrong, message in (
        (["x", "y", "z"], "text must have 1 to 2 entries, got 3"),
        ([], "text must have 1 to 2 entries, got 0"),
        (["x", 5], "text must be a string, or a list of them, got 5"),
        ("\udc80", "text is not valid Unicode: it has half a surrogate pair"),
        (None, "the field 'text' is missing"),
    ):
        with pytest.raises(ApiError) as found:
            texts(wrong)
        assert (found.value.message, found.value.param, found.value.status) == (message, "text", 400)


def test_a_long_text_is_shown_by_its_length():
    fields = Fields({"text": "x" * 12_345}, KNOWN)
    with pytest.raises(ApiError, match=r"text must be short, or a list of them, got 12,345 characters$"):
        fields.one_or_many("text", 2, lambda one: len(one) < 9, "short")


@pytest.mark.parametrize(("value", "neutral"), [(True, 1), (False, 0), (0, False), (1, True), (2, 1), ("", None)])
def test_a_value_that_only_equals_the_neutral_one_is_wrong(value, neutral):
    with pytest.raises(ApiError, match="a is not supported by this server; leave it out, got"):
        Fields({"a": value}, KNOWN).require_neutral("a", (neutral,))


@pytest.mark.parametrize(("value", "neutral"), [(0.0, 0), (False, False), ({}, {}), (None, 7)])
def test_neutral_values(value, neutral):
    Fields({"a": value}, KNOWN).require_neutral("a", (neutral,))


def test_unknown_fields_are_named():
    with pytest.raises(ApiError, match=r"unknown field 'tekst'; did you mean 'text'\?"):
        Fields({"tekst": 1}, KNOWN)
    with pytest.raises(ApiError, match=r"unknown field 'zzzzz' \(there are: a, b, text\)"):
        Fields({"zzzzz": 1}, KNOWN)


def test_long_and_hostile_values_are_shown_short():
    assert shorten("x" * 100) == f"'{'x' * 59}..."
    assert shorten("\x1b[31m\u202e") == "'\\x1b[31m\\u202e'"
    assert shorten({"a": 1}) == "a dict"
