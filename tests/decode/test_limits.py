import pytest

from qkv.decode import SearchLimits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": 5, "end": -1}, "end must be a token id of at least 0, got -1"),
        ({"max_length": 5, "start": -2}, "start must be a token id of at least 0, got -2"),
        ({"max_length": 5, "forbidden": (0, -3)}, "forbidden must be a token id of at least 0, got -3"),
        ({"max_length": 5, "forbidden": (0, 2)}, r"end=2 must not be in forbidden=\(0, 2\)"),
    ],
)
def test_invalid_limits(arguments, message):
    with pytest.raises(ValueError, match=message):
        SearchLimits(**arguments)


def test_default_ids():
    assert SearchLimits(7) == SearchLimits(max_length=7, start=1, end=2, forbidden=(0, 1))
