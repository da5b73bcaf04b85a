"""What a layer gives to the other parts of a sequence, for batch 5, 7 tokens, 3 heads of width 2."""

import pytest

from qkv.profile.plan.exchange import LayerExchange, exchanges, gathered_bytes
from qkv.train.parallel.mesh import Mesh
from tests.profile.plan.small import step

ROWS = 5 * 3


@pytest.mark.parametrize(
    ("attention", "bytes_given"),
    [
        ("linear", 4 * ROWS * 2 * 2),
        ("elu", 4 * ROWS * 2 * (2 + 1)),
        ("taylor", 4 * ROWS * 6 * (2 + 1)),  # 1, two products with q, three of degree 2
        ("linear+forget", 4 * ROWS * (2 * 2 + 1)),
        ("linear+channel(rank=2)", 4 * ROWS * (2 * 2 + 2)),
        ("delta", 4 * ROWS * (2 * 2 + 2 * 2)),
        ("delta+forget+write", 4 * ROWS * (2 * 2 + 2 * 2)),  # the transition includes what the gate fades
    ],
)
def test_linear_kinds_give_a_state_in_float32(attention, bytes_given):
    positions = {"positions": "none"}
    for precision in ("float32", "bfloat16"):
        asked = step(Mesh(sequence=3), length=21, batch=5, attention=attention, precision=precision, changes=positions)
        assert exchanges(asked) == 2 * [LayerExchange(bytes_given, 0, scored=False)]


def test_softmax_gives_keys_and_values():
    asked = step(Mesh(sequence=3), length=21, batch=5, precision="bfloat16")
    assert exchanges(asked) == 2 * [LayerExchange(2 * ROWS * 7 * (2 + 2), 0, scored=True)]
    windowed = step(Mesh(sequence=3), length=21, batch=5, attention="softmax(window=4)")
    assert exchanges(windowed) == 2 * [LayerExchange(4 * ROWS * 4 * (2 + 2), 0, scored=True)]


def test_alibi_fades_linear_states():
    asked = step(Mesh(sequence=3), length=21, batch=5, attention="linear", changes={"positions": "alibi"})
    assert exchanges(asked)[0].attention == 4 * ROWS * (2 * 2 + 1)


def test_convolutions_give_their_last_tokens():
    before = step(Mesh(sequence=3), length=21, batch=5, attention="linear", changes={"convolution": 4})
    assert exchanges(before)[0].neighbors == 4 * 5 * 3 * 6
    after = step(Mesh(sequence=3), length=21, batch=5, attention="linear+convolution(width=4)")
    assert exchanges(after)[0].neighbors == 4 * 5 * 3 * (6 + 6 + 6)


def test_what_stays_until_the_backward_pass():
    assert gathered_bytes(step(length=21)) == []
    keys_and_values, mask = 4 * 3 * 7 * (2 + 2), 4 * 7 * 21
    assert gathered_bytes(step(Mesh(sequence=3), length=21)) == 2 * [2 * keys_and_values + mask]
    window = step(Mesh(sequence=3), length=1002, attention="softmax(window=80)")  # blocks of 80 see 80 more
    assert gathered_bytes(window) == 2 * [2 * 4 * 3 * 80 * (2 + 2) + 4 * 334 * 160]
    states = step(Mesh(sequence=3), length=3 * 130, attention="linear")  # three chunks of at most 64
    assert gathered_bytes(states) == 2 * [(2 + 3) * 4 * 3 * 2 * 2]
