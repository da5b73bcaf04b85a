import math
import xml.etree.ElementTree as ET

import pytest

from qkv.problems import draw_pictures
from tests.problems.calls import run

approx = pytest.approx
NAMES = ("sigmoid", "tanh", "relu", "gelu")
# gelu'(x) = Phi(x) + x phi(x) is largest at the root of 2
STEEPEST = {"sigmoid": 0.25, "tanh": 1.0, "relu": 1.0, "gelu": (1 + math.erf(1)) / 2 + math.exp(-1) / math.pi**0.5}


@pytest.mark.slow
def test_a3_vanishing_gradients():
    answer = run("A3")
    norms = answer["norm of d a_L / d a_1 for L = 1 to 50"]
    assert {len(found) for found in norms.values()} == {50}
    assert len(norms) == 4 * 6
    assert all(norm <= 4.0 ** -(depth - 1) * (1 + 1e-9) for depth, norm in enumerate(norms["sigmoid"], 1))
    assert all(norm > 0 for norm in norms["sigmoid"])
    assert answer["relu where active, depths 2 to 50"] == [1.0] * 49
    assert answer["relu where not, depths 2 to 50"] == [0.0] * 49


@pytest.mark.slow
def test_a3_a_residual_path_alone_grows_and_one_of_scaled_layers_is_flat():
    answer = run("A3")
    norms = answer["norm of d a_L / d a_1 for L = 1 to 50"]
    assert answer["relu where active, residual unscaled, depth 20"] == 2**19 == 524_288
    assert answer["relu where active, residual by 1/20, depth 20"] == approx(1.05**19, abs=1e-12)
    assert min(norms[f"{name}, residual unscaled"][19] for name in NAMES) >= 1
    assert norms["relu, residual unscaled"][49] > 1000 * norms["relu, residual unscaled"][19] > 10**6
    for name in NAMES:
        scaled, s = norms[f"{name}, residual by 1/L"], STEEPEST[name]
        low, high = ([(1 + sign * s / depth) ** (depth - 1) for depth in range(2, 51)] for sign in (-1, 1))
        assert all(a <= norm <= b * (1 + 1e-9) for a, norm, b in zip(low, scaled[1:], high, strict=True))
        ends = answer["residual by 1/20, gradient of layer 1 over that of layer 20"][name]
        assert low[18] <= ends <= high[18]


@pytest.mark.slow
def test_a3_one_plot_says_which_grow_and_which_are_flat():
    texts = [text.text for text in ET.fromstring(draw_pictures("A3", run("A3"))["A3.svg"]).iter() if text.text]
    assert [text for text in texts if text.endswith(": flat")] == [f"{name}, residual by 1/L: flat" for name in NAMES]
    grow = [text for text in texts if text.endswith(": grows")]
    assert grow == [f"{name}, residual unscaled: grows" for name in NAMES[1:]]
    assert {"4^-(L-1)", "relu where active", *NAMES} <= set(texts)
