import pytest

from qkv.cost import Cost, Shape, causal_pairs


@pytest.mark.parametrize("queries", [0, 1, 4, 9])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_causal_pairs_by_counting(queries, window):
    keys = 9
    seen = [
        (i, j)
        for i in range(keys - queries, keys)
        for j in range(keys)
        if j <= i and (window is None or i - j < window)
    ]
    assert causal_pairs(queries, keys, window) == len(seen)


def test_costs_add_and_repeat():
    one = Cost(needed={"scores": 3}, executed={"scores": 5}, parameters={"w": 7}, state={"keys": 11})
    two = Cost(needed={"scores": 1, "values": 2}, executed={"values": 4})
    assert one + two == Cost({"scores": 4, "values": 2}, {"scores": 5, "values": 4}, {"w": 7}, {"keys": 11})
    assert 3 * one == one * 3 == one + one + one


def test_rows_count_heads_of_all_sequences():
    assert (Shape(2, 6, 5, 7, 11, 13, key_heads=3).rows, Shape(2, 6, 5, 7, 11, 13, key_heads=3).key_rows) == (12, 6)
    assert Shape(2, 6, 5, 7, 11, 13).key_rows == 12


def test_shapes_that_no_call_has():
    for name in ("batch", "heads", "queries", "keys", "key_dim", "value_dim"):
        sizes = {"batch": 1, "heads": 8, "queries": 5, "keys": 5, "key_dim": 4, "value_dim": 4}
        with pytest.raises(ValueError, match=f"{name} must be 0 or more, got -1"):
            Shape(**{**sizes, name: -1})
        for key_heads in (0, 3):
            with pytest.raises(ValueError, match=f"key_heads={key_heads} must divide heads=8"):
                Shape(**sizes, key_heads=key_heads)
