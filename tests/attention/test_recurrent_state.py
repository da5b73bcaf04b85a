import pytest
import torch

from qkv.attention import Delta, Linear, RecurrentState, Taylor
from tests.attention.loops import random_qkv


def run(mechanism, qkv, state, first, last):
    return mechanism.step(*(x[:, :, first:last] for x in qkv), state)


def start(mechanism, batch=2):
    return mechanism.start(batch, 6, 11, 13, key_heads=3, dtype=torch.float64)


@pytest.mark.parametrize("use", ["select", "tensors", "join", "drop_places", "fork", "to"])
def test_a_state_that_was_continued_in_place_is_refused(use):
    """Its sums are those of the next state."""
    state = RecurrentState(torch.ones(2, 3, 5, 7), length=5)
    state.consume()
    rows = torch.tensor([0])
    arguments = {"select": (rows,), "join": (RecurrentState(torch.ones(2, 3, 5, 7)),), "drop_places": (1,)}
    with pytest.raises(ValueError, match="already continued in place"):
        getattr(state, use)(*arguments.get(use, ()))
    other = RecurrentState(torch.ones(2, 3, 5, 7))
    with pytest.raises(ValueError, match="already continued in place"):
        other.join(state)


@pytest.mark.parametrize("mechanism", [Taylor(), Linear(), Delta()], ids=lambda x: x.kind)
def test_rows_that_began_at_different_times(mechanism):
    qkv = random_qkv(7, 7)
    _, early = run(mechanism, qkv, start(mechanism), 0, 5)
    _, late = run(mechanism, qkv, start(mechanism), 3, 5)
    out, joined = run(mechanism, [x.repeat(2, 1, 1, 1) for x in qkv], early.join(late), 5, 7)
    expected = torch.cat([run(mechanism, qkv, state, 5, 7)[0] for state in (early, late)])
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert (joined.rows, joined.length) == (4, 7)
    assert joined.bytes == 2 * early.bytes
    rest = joined.select(torch.tensor([2, 3])).drop_places(3)
    assert rest.length == 4


def test_a_state_with_fewer_places_is_a_copy():
    state = RecurrentState(torch.ones(2, 3, 5, 7), torch.ones(2, 3, 5, 1), length=5)
    shorter = state.drop_places(2)
    state.kv_sum.zero_()
    state.k_sum.zero_()
    assert (shorter.length, float(shorter.kv_sum.min()), float(shorter.k_sum.min())) == (3, 1, 1)
    for count in (-1, 6):
        with pytest.raises(ValueError, match=f"count must be from 0 to length=5, got {count}"):
            state.drop_places(count)


def test_bad_input_sums_that_differ():
    normalized = RecurrentState(torch.ones(1, 3, 5, 7), torch.ones(1, 3, 5, 1))
    with pytest.raises(ValueError, match="states cannot be joined: only some have k_sum"):
        normalized.join(RecurrentState(torch.ones(1, 3, 5, 7)))
    with pytest.raises(ValueError, match=r"kv_sum of one has shape \(1, 3, 5, 7\).*another \(1, 2, 5, 7\)"):
        normalized.join(RecurrentState(torch.ones(1, 2, 5, 7), torch.ones(1, 2, 5, 1)))
    with pytest.raises(KeyError, match="k_sum"):
        normalized.with_tensors({"kv_sum": torch.ones(1, 3, 5, 7), "length": torch.tensor(3)})
