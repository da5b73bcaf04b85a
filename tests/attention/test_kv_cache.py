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


def feed(mechanism, qkv, state, first, last):
    return mechanism.step(*(x[:, :, first:last] for x in qkv), state)


@pytest.mark.parametrize("inference", [False, True])
def test_after_a_rewind_other_tokens_can_follow(inference):
    right, wrong, mechanism = random_qkv(queries=7, keys=7), random_qkv(queries=3, keys=3), Softmax()
    expected = mechanism(*right, causal=True)
    with torch.inference_mode(inference):
        _, state = feed(mechanism, right, start(mechanism, capacity=9), 0, 4)
        _, state = feed(mechanism, wrong, state, 0, 3)
        state = state.rewind(3)
        assert (state.length, state.addressable_keys) == (4, 4)
        out, _ = feed(mechanism, right, state, 4, 7)
    torch.testing.assert_close(out, expected[:, :, 4:], rtol=0, atol=1e-12)


def test_a_rewind_in_place_keeps_the_buffer():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    with torch.inference_mode():
        _, state = feed(mechanism, qkv, start(mechanism, capacity=9), 0, 5)
        home = state.keys.untyped_storage().data_ptr()
        _, state = feed(mechanism, qkv, state.rewind(2), 3, 7)
    assert state.keys.untyped_storage().data_ptr() == home
    assert torch.equal(state.keys, qkv[1])


def test_states_that_a_rewind_has_taken_back_are_refused():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    with torch.inference_mode():
        _, early = feed(mechanism, qkv, start(mechanism, capacity=9), 0, 2)
        _, middle = feed(mechanism, qkv, early, 2, 4)
        _, last = feed(mechanism, qkv, middle, 4, 6)
        last.rewind(3)
        for state in (middle, last):
            for use in (state.tensors, state.fork, lambda state=state: state.rewind(1), lambda s=state: s.join(s)):
                with pytest.raises(ValueError, match=r"taken back in place.*select"):
                    use()
        assert torch.equal(early.fork().keys, qkv[1][:, :, :2])


def test_tensors_that_were_handed_out_are_not_written_over():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    with torch.inference_mode():
        _, state = feed(mechanism, qkv, start(mechanism, capacity=9), 0, 5)
        keys = state.tensors()["keys"]
        feed(mechanism, qkv, state.rewind(4), 5, 7)
    assert torch.equal(keys, qkv[1][:, :, :5])


def test_a_preserved_state_outlives_the_steps_after_it():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    expected = mechanism(*qkv, causal=True)
    with torch.inference_mode():
        _, state = feed(mechanism, qkv, start(mechanism, capacity=9), 0, 3)
        kept = state.preserved()
        feed(mechanism, [x.flip(2) for x in qkv], state, 0, 2)
        out, after = feed(mechanism, qkv, kept, 3, 7)
        _, again = feed(mechanism, qkv, after.rewind(1), 6, 7)
    torch.testing.assert_close(out, expected[:, :, 3:], rtol=0, atol=1e-12)
    assert torch.equal(again.keys, qkv[1])


def test_masks_gates_and_documents_are_taken_back_too():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    mask, starts = torch.rand(2, 7) < 0.6, torch.rand(2, 7) < 0.3
    extras = {"mask": mask, "starts": starts, "decay": torch.rand(2, 6, 7, dtype=torch.float64)}

    def continued(state, first, last):
        given = {name: x[..., first:last] for name, x in extras.items()}
        return mechanism.step(*(x[:, :, first:last] for x in qkv), state, **given)

    _, state = continued(start(mechanism), 0, 6)
    out, _ = continued(state.rewind(3), 3, 7)
    expected = mechanism(*qkv, causal=True, **extras)[:, :, 3:]
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_what_a_window_has_dropped_cannot_be_brought_back():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax(window=4)
    _, state = feed(mechanism, qkv, start(mechanism), 0, 4)
    assert (state.rewindable, set(state.place_axes)) == (4, {"keys", "values"})
    assert state.rewind(1).length == 3
    _, state = feed(mechanism, qkv, state, 4, 5)
    assert (state.rewindable, state.place_axes) == (0, {})
    assert state.rewind(0) is state
    with pytest.raises(ValueError, match=r"count=1 tokens cannot be taken back from this KVCache, only 0 to 0; .*fork"):
        state.rewind(1)


@pytest.mark.parametrize("count", [-1, 6])
def test_only_tokens_that_are_there_can_be_taken_back(count):
    mechanism = Softmax()
    _, state = feed(mechanism, random_qkv(queries=5, keys=5), start(mechanism), 0, 5)
    with pytest.raises(ValueError, match=f"count={count} tokens .* only 0 to 5"):
        state.rewind(count)
