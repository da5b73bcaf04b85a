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


def prefill(mechanism, qkv, first, last, **modifiers):
    """Outputs and the state of these tokens alone."""
    return mechanism.step(
        *(x[:, :, first:last] for x in qkv), start(mechanism), **{n: x[..., first:last] for n, x in modifiers.items()}
    )


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("window", [None, 2, 4])
@pytest.mark.parametrize("given", [(), ("decay",), ("starts",), ("mask",), ("decay", "starts", "mask")])
def test_rows_that_began_at_different_times(window, given, inference):
    """Before and after the cache of the early rows has reached the window; the early rows leave."""
    mechanism, qkv = Softmax(window=window), random_qkv(9, 9)
    made = {"decay": torch.rand(2, 3, 9).double(), "starts": torch.rand(2, 9) < 0.3, "mask": torch.rand(2, 9) < 0.7}
    modifiers = {name: made[name] for name in given}
    both = [x.repeat(2, 1, 1, 1) for x in qkv]
    twice = {name: torch.cat((x, x)) for name, x in modifiers.items()}
    with torch.inference_mode(inference):
        early, late = (prefill(mechanism, qkv, first, 6, **modifiers)[1] for first in (0, 4))
        separate = [state.fork() for state in (early, late)]
        state, parts, alone = early.join(late), [], []
        for place in (6, 7, 8):
            now = {name: x[..., place : place + 1] for name, x in twice.items()}
            if place == 8:
                state = state.select(torch.tensor([2, 3])).drop_places(4)
                now = {name: x[2:] for name, x in now.items()}
            inputs = [x[: state.rows, :, place : place + 1] for x in both]
            out, state = mechanism.step(*inputs, state, **now)
            parts.append(out)
            stepped = [
                mechanism.step(
                    *(x[:, :, place : place + 1] for x in qkv),
                    own,
                    **{name: x[..., place : place + 1] for name, x in modifiers.items()},
                )
                for own in separate
            ]
            separate = [own for _, own in stepped]
            alone.append(torch.cat([out for out, _ in stepped])[-state.rows :])
    for out, expected in zip(parts, alone, strict=True):
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert (state.length, state.rows) == (5, 2)
    assert state.addressable_keys == min(5, window or 5)


def test_only_places_that_no_token_holds_are_dropped():
    _, early = prefill(Softmax(), random_qkv(5, 5), 0, 5)
    _, late = prefill(Softmax(), random_qkv(5, 5), 3, 5)
    joined = early.join(late)
    assert joined.mask.tolist() == 2 * [[True] * 5] + 2 * [[False] * 3 + [True] * 2]
    with pytest.raises(ValueError, match="count=3 places cannot be dropped: some of them hold tokens that can be seen"):
        joined.drop_places(3)
    rest = joined.select(torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="count=4 places cannot be dropped"):
        rest.drop_places(4)
    assert (rest.drop_places(2).length, rest.drop_places(2).mask.tolist()) == (3, 2 * [[False, True, True]])
    assert (rest.drop_places(3).length, rest.drop_places(3).mask) == (2, None)
    for count in (-1, 6):
        with pytest.raises(ValueError, match=f"count must be from 0 to length=5, got {count}"):
            joined.drop_places(count)


def test_an_empty_cache_joins_one_of_another_dtype():
    """A layer under autocast, or a quantized one, knows its dtype only at the first token."""
    mechanism, qkv = Softmax(), [x.half() for x in random_qkv(5, 5)]
    _, full = mechanism.step(*qkv, mechanism.start(2, 6, 11, 13, key_heads=3))
    joined = mechanism.start(2, 6, 11, 13, key_heads=3).join(full)
    assert (joined.keys.dtype, joined.values.dtype, joined.length) == (torch.float16, torch.float16, 5)
    assert joined.mask.tolist() == 2 * [[False] * 5] + 2 * [[True] * 5]


def test_bad_input_caches_that_differ():
    _, state = prefill(Softmax(), random_qkv(5, 5), 0, 5)
    other = Softmax().start(1, 6, 7, 13, key_heads=3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"keys of one has shape \(2, 3, 5, 11\).*another \(1, 3, 5, 7\)"):
        state.join(other)
    with pytest.raises(KeyError, match="values"):
        state.with_tensors({name: x for name, x in state.tensors().items() if name != "values"})


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


def test_a_state_that_was_continued_is_taken_back_as_a_copy():
    qkv, mechanism = random_qkv(queries=7, keys=7), Softmax()
    with torch.inference_mode():
        _, early = feed(mechanism, qkv, start(mechanism, capacity=9), 0, 4)
        _, late = feed(mechanism, qkv, early, 4, 6)
        copy = early.rewind(1)
        feed(mechanism, qkv, late.rewind(5), 5, 7)  # writes over the places of both
        _, found = feed(mechanism, qkv, copy, 3, 7)
    assert torch.equal(found.keys, qkv[1])


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
        flipped = [x.flip(2) for x in qkv]
        _, other = feed(mechanism, flipped, state, 0, 2)
        out, after = feed(mechanism, qkv, kept, 3, 7)
        _, again = feed(mechanism, qkv, after.rewind(1), 6, 7)
    torch.testing.assert_close(out, expected[:, :, 3:], rtol=0, atol=1e-12)
    assert torch.equal(again.keys, qkv[1])
    assert torch.equal(other.keys[:, :, 3:], flipped[1][:, :, :2])


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
