import pytest

from qkv.decode import Limits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": 5, "end": -1}, "end must be a token id of 0 or more, got -1"),
        ({"max_length": 5, "start": -2}, "start must be a token id of 0 or more, got -2"),
        ({"max_length": 5, "forbidden": (0, -3)}, "forbidden must be a token id of 0 or more, got -3"),
        ({"max_length": 5, "forbidden": (0, 2)}, r"end=2 is in forbidden=\(0, 2\)"),
    ],
)
def test_limits_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Limits(**arguments)


def test_the_usual_ids():
    assert Limits(7) == Limits(max_length=7, start=1, end=2, forbidden=(0, 1))
