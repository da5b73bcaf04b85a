import pytest

from qkv.train.objective import part_of


@pytest.mark.parametrize(
    ("length", "parts", "sizes"), [(12, 3, [4, 4, 4]), (13, 4, [4, 4, 4, 1]), (5, 4, [2, 2, 1, 0]), (0, 2, [0, 0])]
)
def test_parts_of_a_time_axis(length, parts, sizes):
    places = [range(length)[part_of(length, part, parts)] for part in range(parts)]
    assert [len(x) for x in places] == sizes
    assert [place for x in places for place in x] == list(range(length))
