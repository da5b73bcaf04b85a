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
