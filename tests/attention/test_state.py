import re
from dataclasses import dataclass

import pytest
import torch

from qkv.attention import KVCache, RecurrentState, Softmax, StateValue, kinds
from qkv.attention.state import (
    check_joinable,
    join_offsets,
    join_parts,
    join_rows,
    needed_places,
    pad_end,
    pad_front,
    under_prefix,
    with_prefix,
)
from tests.attention.loops import random_qkv

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Smallest(StateValue):
    """A state of a class from outside that can only be selected."""

    x: torch.Tensor

    def select(self, rows):
        return Smallest(self.x[rows])


@dataclass(frozen=True)
class Named(Smallest):
    """One that also names its tensors."""

    def select(self, rows):
        return Named(self.x[rows])

    def tensors(self):
        return {"count": torch.tensor(3), "x": self.x}


def started(kind, batch=2, dtype=torch.float64):
    """The state of a kind after five tokens, and what follows them."""
    mechanism, qkv = kinds[kind].example(11).to(dtype), [x.to(dtype) for x in random_qkv(7, 7, batch=batch)]
    state = mechanism.start(batch, 6, 11, 13, key_heads=3, dtype=dtype)
    _, state = mechanism.step(*(x[:, :, :5] for x in qkv), state)
    return mechanism, state, [x[:, :, 5:] for x in qkv]


def test_a_class_that_names_its_tensors_can_be_forked():
    state = Named(torch.arange(5))
    assert (state.rows, state.bytes, state.device) == (5, 6 * 8, CPU)
    assert state.fork(2).x.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        state.fork(0)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("tensors", ()), ("with_tensors", ({},)), ("join", ()), ("drop_places", (1,)), ("fork", ()), ("to", ("cpu",))],
)
def test_a_method_that_a_class_does_not_have(method, arguments):
    missing = method if method not in ("fork", "to") else "tensors"
    with pytest.raises(NotImplementedError, match=f"a state of class Smallest has no method '{missing}'"):
        getattr(Smallest(torch.arange(5)), method)(*arguments)


@pytest.mark.parametrize("kind", list(kinds))
def test_a_moved_state_is_a_copy(kind):
    _, state, _ = started(kind)
    moved = state.to("cpu")
    assert (moved.rows, moved.bytes, moved.length) == (2, state.bytes, 5)
    for name, x in state.tensors().items():
        assert torch.equal(moved.tensors()[name], x)
        x.zero_()
    assert all(x.any() for name, x in moved.tensors().items() if x.dim())


@pytest.mark.parametrize("kind", sorted(set(kinds) - {"additive"}))
def test_a_state_for_half_precision_sums_in_float32(kind):
    mechanism, state, rest = started(kind, dtype=torch.float32)
    expected, _ = mechanism.step(*rest, state)
    half = state.to(dtype=torch.float16)
    out, half = mechanism.half().step(*(x.half() for x in rest), half)
    assert {x.dtype for x in half.tensors().values() if x.dim()} == {
        torch.float16 if isinstance(half, KVCache) else torch.float32
    }
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.02)


def test_the_sums_of_a_gate_keep_their_precision():
    q, k, v = (x.float() for x in random_qkv(5, 5))
    rates = torch.rand(2, 3, 5)
    _, state = Softmax().step(q, k, v, Softmax().start(2, 6, 11, 13, key_heads=3), decay=rates)
    assert state.to(dtype=torch.float16).tensors()["decay_sums"].dtype == torch.float64
    assert torch.equal(state.to(dtype=torch.float16).decay_sums, state.decay_sums)
    assert state.to(dtype=torch.float16).keys.dtype == torch.float16


def test_bad_input_states_of_two_classes():
    states = KVCache(*torch.zeros(2, 1, 2, 3, 5)), RecurrentState(torch.zeros(1, 2, 3, 5))
    message = "states cannot be joined: they are of classes KVCache and RecurrentState; join states of one model"
    for first, second in (states, states[::-1]):
        with pytest.raises(ValueError, match="states cannot be joined: they are of classes"):
            first.join(second)
    with pytest.raises(ValueError, match=message):
        check_joinable([states[0], *states])
    with pytest.raises(ValueError, match=re.escape("they have [1, 2] blocks; join states of one model")):
        join_parts("blocks", [states[:1], states])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (torch.zeros(2, 5), "(2, 5), torch.float32 on cpu"),
        (torch.zeros(2, 3, dtype=torch.float64), "(2, 3), torch.float64 on cpu"),
        (torch.zeros(2, 3, device="meta"), "(2, 3), torch.float32 on meta"),
    ],
)
def test_bad_input_rows_that_differ(other, said):
    message = f"sums of one has shape (1, 3), torch.float32 on cpu, that of another {said}"
    with pytest.raises(ValueError, match=re.escape(message)):
        join_rows("sums", [torch.zeros(1, 3), other])


def test_padding():
    x = torch.arange(1, 7).view(1, 2, 3)
    assert pad_front(x, 1, 4).tolist() == [[[0, 0, 0], [0, 0, 0], [1, 2, 3], [4, 5, 6]]]
    assert pad_end(x, 2, 4).tolist() == [[[1, 2, 3, 0], [4, 5, 6, 0]]]
    assert pad_front(x, 2, 3) is x
    assert pad_front(torch.ones(1, 0, 2), 1, 1).tolist() == [[[0, 0]]]
    assert pad_end(torch.tensor([[True]]), 1, 2).tolist() == [[True, False]]


def test_offsets_of_rows_that_are_joined():
    offsets = join_offsets([None, torch.tensor([0, 2])], [3, 7], [3, 2], CPU)
    assert offsets.tolist() == [4, 4, 4, 0, 2]
    assert join_offsets([None, None], [7, 7], [3, 2], CPU) is None
    assert join_offsets([torch.tensor([-2]), None], [7, 5], [1, 1], CPU).tolist() == [-2, 2]
    assert join_offsets([None, None], [7, 5], [3, 2], torch.device("meta")).device.type == "meta"


def test_places_that_no_row_needs():
    hidden = torch.tensor([[False, True, False, False], [False, True, False, True]])
    kept, mask = needed_places(hidden)
    assert (kept.tolist(), mask.tolist()) == ([1, 3], [[True, False], [True, True]])
    kept, mask = needed_places(hidden[1:])
    assert (kept.tolist(), mask) == ([1, 3], None)


def test_prefixes_of_names():
    one, two, three = torch.arange(3)
    tensors = with_prefix("blocks.1", {"x": one}) | with_prefix("blocks.10", {"x": two, "y": three})
    assert tensors == {"blocks.1.x": one, "blocks.10.x": two, "blocks.10.y": three}
    assert under_prefix("blocks.1", tensors) == {"x": one}
    assert under_prefix("blocks.10", tensors) == {"x": two, "y": three}
