import pytest
import torch

from qkv.attention import Softmax
from tests.attention.loops import random_qkv


def start(mechanism, capacity=None):
    return mechanism.start(2, 6, 11, 13, key_heads=3, capacity=capacity, dtype=torch.float64)


def step(mechanism, qkv, state, position):
    return mechanism.step(*(x[:, :, position : position + 1] for x in qkv), state)


def test_in_place_a_state_cannot_be_continued_twice():
    qkv, mechanism = random_qkv(queries=5, keys=5), Softmax()
    with torch.inference_mode():
        state = start(mechanism, capacity=8)
        step(mechanism, qkv, state, 0)
        with pytest.raises(ValueError, match=r"already continued.*select"):
            step(mechanism, qkv, state, 1)


def test_select_gives_an_independent_branch():
    qkv, mechanism = random_qkv(queries=5, keys=5), Softmax()
    with torch.inference_mode():
        _, state = step(mechanism, qkv, start(mechanism, capacity=8), 0)
        branch = state.select(torch.tensor([0, 1]))
        first, _ = step(mechanism, qkv, state, 1)
        step(mechanism, qkv, branch, 2)
        again = mechanism(*(x[:, :, :2] for x in qkv), causal=True)[:, :, 1:]
    torch.testing.assert_close(first, again, rtol=0, atol=1e-12)


def test_with_gradients_a_state_can_be_continued_twice():
    qkv, mechanism = random_qkv(queries=5, keys=5), Softmax()
    state = start(mechanism)
    first, _ = step(mechanism, qkv, state, 0)
    second, _ = step(mechanism, qkv, state, 0)
    assert torch.equal(first, second)


def test_capacity_is_allocated_once():
    qkv, mechanism = random_qkv(queries=20, keys=20), Softmax()
    with torch.inference_mode():
        state = start(mechanism, capacity=20)
        homes = set()
        for position in range(20):
            _, state = step(mechanism, qkv, state, position)
            homes.add(state.keys.untyped_storage().data_ptr())
    assert len(homes) == 1


def test_a_window_bounds_the_cache():
    qkv, mechanism = random_qkv(queries=50, keys=50), Softmax(window=4)
    with torch.inference_mode():
        state = start(mechanism)
        for position in range(50):
            _, state = step(mechanism, qkv, state, position)
    assert (state.addressable_keys, state.length) == (4, 50)
    assert state.bytes == 2 * 3 * 4 * (11 + 13) * 8
    assert state.keys.untyped_storage().nbytes() <= 4 * 2 * 3 * 11 * 8 * 4


@pytest.mark.parametrize("inference", [False, True])
def test_an_empty_cache_adopts_the_dtype_of_its_first_tokens(inference):
    qkv, mechanism = [x.half() for x in random_qkv(queries=5, keys=5)], Softmax()
    with torch.inference_mode(inference):
        state = start(mechanism, capacity=5)
        for position in range(5):
            out, state = step(mechanism, qkv, state, position)
    assert {x.dtype for x in (out, state.keys, state.values)} == {torch.float16}
    torch.testing.assert_close(out, mechanism(*qkv, causal=True)[:, :, -1:])
