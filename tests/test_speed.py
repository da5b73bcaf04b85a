"""The speed that is promised, at 0.8 of the figure, since machines are shared: ratios from one run, never seconds."""

import math

import pytest

from qkv.cli.inspection.bench import run

pytestmark = [pytest.mark.slow, pytest.mark.alone]
NOISE = 0.8
PROMISED = {("taylor", 8192): 6, ("taylor", 32768): 20, ("linear", 32768): 45}
"""How many times faster than softmax, forward."""


@pytest.fixture(scope="module")
def forward():
    """The least times of up to six runs, softmax's too: whoever shares the machine can only add to them.

    They may add much to one kind and nothing to another, so a promise not kept is tried again; one that the code has
    broken is broken every time.
    """
    runs = []
    for _ in range(6):
        runs.append(run([4096, 8192, 32768], ["taylor", "linear", "elu"], backward=False, device="cpu"))
        rows = [least(runs, row) for row in runs[0]]
        if all(ratio(rows, *what) >= NOISE * times for what, times in PROMISED.items()):
            break
    return rows


def least(runs, row):
    same = [other for rows in runs for other in rows if (other.kind, other.tokens) == (row.kind, row.tokens)]
    return min(same, key=lambda other: other.milliseconds)


def ratio(rows, kind, tokens):
    times = {row.kind: row.milliseconds for row in rows if row.tokens == tokens}
    return times["softmax"] / times[kind]


@pytest.mark.parametrize(("kind", "tokens"), PROMISED)
def test_against_softmax(forward, kind, tokens):
    assert ratio(forward, kind, tokens) >= NOISE * PROMISED[kind, tokens]


def test_taylor_with_backward_against_softmax():
    runs = (run([32768], ["taylor"], backward=True, device="cpu") for _ in range(3))
    assert any(ratio(rows, "taylor", 32768) >= NOISE * 10 for rows in runs)


@pytest.mark.parametrize("kind", ["taylor", "linear", "elu"])
def test_time_grows_linearly(forward, kind):
    first, *_, last = (row.milliseconds for row in forward if row.kind == kind)
    assert math.log(last / first) / math.log(32768 / 4096) <= 1.15 / NOISE


@pytest.mark.parametrize(("kind", "key_dim"), [("taylor", 16), ("linear", 64), ("elu", 64)])
def test_memory_is_that_of_the_inputs(forward, kind, key_dim):
    """No tolerance: bytes are counted, not timed."""
    (peak,) = (row.peak_bytes for row in forward if (row.kind, row.tokens) == (kind, 32768))
    inputs_and_output = 8 * 32768 * (2 * key_dim + 2 * 64) * 4
    assert peak <= 3 * inputs_and_output
