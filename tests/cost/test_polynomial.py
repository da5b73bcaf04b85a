from fractions import Fraction

import pytest
import sympy

from qkv.cost import crossings, evaluate, format_formula, format_latex, interpolate
from qkv.cost.polynomial import interpolate_near, symbol

N, M = symbol("n"), symbol("m")


@pytest.mark.parametrize("text", ["61*n**2 + 9700*n", "n**2/2 + n/2", "7", "5 - 3*n**2"])
def test_a_polynomial_is_recovered_exactly(text):
    expected = sympy.sympify(text, {"n": N})
    found = interpolate(lambda sizes: int(expected.subs(N, sizes["n"])), {"n": 2}, {"n": 1000})
    assert format_formula(found) == text


def test_of_several_sizes():
    found = interpolate(lambda s: 3 * s["n"] ** 2 * s["m"] + 5 * s["m"] ** 3 + 1, {"n": 2, "m": 3}, {"n": 9, "m": 8})
    assert format_formula(found) == "5*m**3 + 3*m*n**2 + 1"


def test_numbers_beyond_all_floats_stay_exact():
    large = 10**40 + 1
    found = interpolate(lambda s: large * s["n"], {"n": 2}, {"n": 3})
    assert evaluate(found, {"n": 10**30}) == large * 10**30


@pytest.mark.parametrize(
    "function", [lambda s: s["n"] ** 3, lambda s: s["n"] // 2, lambda s: min(s["n"], 40), lambda s: 2 ** s["n"]]
)
def test_what_is_no_polynomial_of_the_degree_has_no_formula(function):
    assert interpolate(function, {"n": 2}, {"n": 100}) is None


def test_another_law_for_long_sequences_is_noticed_where_it_is_asked_for():
    def windowed(sizes):
        return min(sizes["n"], 64)

    assert interpolate(windowed, {"n": 2}, {"n": 1000}) is None
    assert format_formula(interpolate_near(windowed, {"n": 2}, {"n": 1000})) == "64"
    assert format_formula(interpolate_near(windowed, {"n": 2}, {"n": 3})) == "n"


def test_values_may_be_fractions():
    assert evaluate(N / 2, {"n": 3}) == Fraction(3, 2)


def test_crossings_are_exact():
    assert crossings(2 * N**2, 33 * N) == [sympy.Rational(33, 2)]
    assert crossings(N**2, 5 * N + 7) == [sympy.Rational(5, 2) + sympy.sqrt(53) / 2]
    assert crossings(N**2 - 5 * N, sympy.Integer(-6)) == [2, 3]
    assert crossings(N, 2 * N) == crossings(N, N) == crossings(N + 1, N) == []


def test_latex():
    assert format_latex(61 * N**2 + 9700 * N) == "61 n^{2} + 9700 n"


def test_no_formula_says_so():
    assert format_formula(None).startswith("none")
