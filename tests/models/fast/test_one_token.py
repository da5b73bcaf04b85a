"""The short step of each kind equals its `step`, and leaves to it what it does not cover."""

import pytest
import torch

from qkv.attention import Additive, Delta, Elu, Linear, Softmax, Taylor
from qkv.models.fast.one_token import token_step

ROWS, HEADS, KEY_DIM, VALUE_DIM, TIME = 2, 3, 6, 5, 7
COVERED = {
    "taylor": (Taylor(), VALUE_DIM),
    "taylor, order 4": (Taylor(order=4, scale=0.3), VALUE_DIM),
    "elu": (Elu(), VALUE_DIM),
    "linear": (Linear(), VALUE_DIM),
    "delta": (Delta(), VALUE_DIM),
    "delta, scale": (Delta(scale=0.7), VALUE_DIM),
    "softmax": (Softmax(), KEY_DIM),
    "softmax, scale": (Softmax(scale=0.7), KEY_DIM),
}


def draw(time, value_dim, key_heads=HEADS):
    sizes = (HEADS, KEY_DIM), (key_heads, KEY_DIM), (key_heads, value_dim)
    return tuple(torch.randn(ROWS, heads, time, dim, dtype=torch.float64) for heads, dim in sizes)


def after(attention, key_heads, q, k, v):
    state = attention.start(ROWS, HEADS, KEY_DIM, v.shape[3], key_heads=key_heads, dtype=q.dtype)
    return attention.step(q, k, v, state)[1]


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize("key_heads", [HEADS, 1])
@torch.inference_mode()
def test_a_short_step_equals_the_step(name, key_heads):
    attention, value_dim = COVERED[name]
    short = token_step(attention, KEY_DIM, value_dim)
    prompt, tokens = draw(TIME, value_dim, key_heads), [draw(1, value_dim, key_heads) for _ in range(3)]
    mine, wanted = after(attention, key_heads, *prompt), after(attention, key_heads, *prompt)
    for token in tokens:
        found, mine = short(*token, mine)
        expected, wanted = attention.step(*token, wanted)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert mine.length == wanted.length
        for key, held in wanted.tensors().items():
            torch.testing.assert_close(mine.tensors()[key], held, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COVERED)
@torch.inference_mode()
def test_the_first_token(name):
    attention, value_dim = COVERED[name]
    token = draw(1, value_dim)
    start = attention.start(ROWS, HEADS, KEY_DIM, value_dim, dtype=torch.float64)
    expected = attention.forward(*token, causal=True)
    torch.testing.assert_close(
        token_step(attention, KEY_DIM, value_dim)(*token, start)[0], expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    "attention",
    [Softmax(window=3), Softmax(scale=-1.0), Softmax(backend="reference"), Additive(KEY_DIM), Delta(backend="triton")],
)
def test_what_is_not_covered_is_the_step(attention):
    assert token_step(attention, KEY_DIM, KEY_DIM) == attention.step


def test_values_of_another_width_are_left_to_the_step():
    attention = Softmax()
    assert token_step(attention, KEY_DIM, VALUE_DIM) == attention.step


@torch.inference_mode()
def test_an_overflow_is_repaired_as_in_the_step():
    """Scores of 1e30 squared overflow float32; the weight of the only large key is 1."""
    attention = Taylor(scale=1.0)
    q, k, v = (x.float() for x in draw(1, VALUE_DIM))
    state = attention.start(ROWS, HEADS, KEY_DIM, VALUE_DIM)
    out = token_step(attention, KEY_DIM, VALUE_DIM)(1e15 * q, 1e15 * k, v, state)[0]
    torch.testing.assert_close(out, v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", [Taylor(), Delta()])
@torch.inference_mode()
def test_the_state_before_can_be_continued_again(attention):
    short, state = token_step(attention, KEY_DIM, VALUE_DIM), after(attention, HEADS, *draw(TIME, VALUE_DIM))
    token = draw(1, VALUE_DIM)
    assert torch.equal(short(*token, state)[0], short(*token, state)[0])
