import pytest
import sympy

from qkv.cost import Shape
from qkv.cost.polynomial import symbol
from qkv.profile.attention_kinds import compare_kinds, find_kind_crossovers
from qkv.profile.crossover import find_crossovers

N = symbol("n")
NONE = (None, None)


def crossed(kinds, length):
    """Quantity -> crossovers of two causal kinds of width 16, computed at this length."""
    costs = compare_kinds(kinds, Shape(1, 1, length, length, 16, 16, causal=True))
    return {one.quantity: one.crossovers for one in find_kind_crossovers(costs)}


@pytest.mark.parametrize("length", [20, 300, 4096])
def test_a_window_crosses_where_its_costs_do_whatever_length_is_asked_for(length):
    """Below 512 tokens 16 n (n + 1) multiplications and 128 n bytes, against 512 n and 1024."""
    found = crossed(["softmax(window=512)", "linear"], length)
    assert {what: one.lengths for what, one in found.items()} == {"multiplications": (31,), "cache bytes": (8,)}
    assert [one.intervals for one in found.values()] == [(), ()]


def test_a_crossing_in_the_part_where_the_window_is_full():
    """n (n + 1) / 2 pairs up to 200 tokens, then 200 n - 19,900; taylor takes 5,049 n."""
    found = crossed(["softmax(window=200)", "taylor(order=2)"], 100)["multiplications"]
    # 32 (200 n - 19900) = 5049 n
    assert found.lengths == (sympy.Rational(636_800, 1351),)


@pytest.mark.parametrize("length", [300, 4096])
def test_a_window_is_the_same_as_none_until_it_is_full(length):
    for one in crossed(["softmax(window=512)", "softmax"], length).values():
        assert (one.lengths, one.intervals) == ((), ((1, 512),))


def test_what_never_differs_and_what_always_does():
    assert all(one.always for one in crossed(["softmax", "softmax"], 100).values())
    found = crossed(["elu", "taylor"], 100)["multiplications"]
    assert (found.lengths, found.intervals, found.always) == ((), (), False)


def test_a_formula_says_where_it_holds():
    window, plain = compare_kinds(["softmax(window=512)", "softmax"], Shape(1, 1, 300, 300, 16, 16, causal=True))
    assert (window.needed.formula, window.needed.holds) == (plain.needed.formula, {"n": (1, 512)})
    assert plain.needed.holds == {"n": (1, 2**20)}


def test_roots_far_away_are_found_and_false_ones_are_not():
    far = find_crossovers(lambda n: n * n, lambda n: 5000 * n + 7, 100, NONE)
    assert far.lengths == (2500 + sympy.sqrt(6_250_007),)
    false = find_crossovers(lambda n: min(n, 50), lambda n: 70, 1000, (N, sympy.Integer(70)))
    assert (false.lengths, false.intervals) == ((), ())


def test_several_crossings_and_one_in_a_leap():
    twice = find_crossovers(lambda n: n * n + 600, lambda n: 70 * n, 1000, NONE)
    assert twice.lengths == (10, 60)
    leap = find_crossovers(lambda n: n if n < 50 else 2 * n, lambda n: 70, 1000, NONE)
    assert leap.lengths == (50,)


def test_they_may_be_equal_from_some_length_on():
    assert find_crossovers(lambda n: min(n, 30), lambda n: 30, 1000, NONE).intervals == ((30, None),)
