import re

import pytest
import torch

from qkv.attention import Linear, Softmax
from qkv.layers import Context, MultiHead, ShortConvolution
from qkv.positions import Positions, Rope
from tests.layers.test_gates import LAYERS as GATED
from tests.layers.test_multi_head import COMBINATIONS

LAYERS = {**COMBINATIONS, **{f"{name}, gated": layer for name, layer in GATED.items()}}
EACH = pytest.mark.parametrize("name", LAYERS)


def near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def late_rows(layer, x):
    """A state of two rows after six tokens, joined by the second after two, and both alone."""
    _, early = layer.step(x[:, :6], layer.start(2))
    _, late = layer.step(x[1:, 4:6], layer.start(1))
    return early.join(late), early, late


@EACH
def test_rows_that_began_at_different_times(name):
    layer = LAYERS[name]().double()
    x = torch.randn(2, 11, layer.dim).double()
    state, early, late = late_rows(layer, x)
    assert (state.rows, state.length, state.offsets.tolist()) == (3, 6, [0, 0, 4])
    out, state = layer.step(x[[0, 1, 1], 6:8], state)
    (first, _), (second, late) = layer.step(x[:, 6:8], early), layer.step(x[1:, 6:8], late)
    near(out, torch.cat((first, second)))
    rest = state.select(torch.tensor([2])).drop_places(4)
    assert (rest.rows, rest.length, rest.offsets) == (1, 4, None)
    near(layer.step(x[1:, 8:], rest)[0], layer.step(x[1:, 8:], late)[0])


def test_joined_rows_can_be_taken_back():
    layer, x = LAYERS["linear with everything"]().double(), torch.randn(2, 11, 12).double()
    early, late = (layer.step(x[:, first:6], layer.start(2).with_undo_log())[1] for first in (0, 4))
    state = early.join(late)
    both = torch.cat((x, x))
    expected, _ = layer.step(both[:, 6:9], state)
    _, longer = layer.step(torch.cat((both[:, 6:7], both[:, :3]), 1), state)
    out, _ = layer.step(both[:, 7:9], longer.rewind(3))
    near(out, expected[:, 1:])


@EACH
def test_a_state_of_tensors_is_the_same_state(name):
    layer = LAYERS[name]().double()
    x = torch.randn(2, 11, layer.dim).double()
    state, *_ = late_rows(layer, x)
    again = layer.start(5).with_tensors(state.tensors())
    assert again.tensors().keys() == state.tensors().keys()
    assert torch.equal(layer.step(x[[0, 1, 1], 6:], again)[0], layer.step(x[[0, 1, 1], 6:], state)[0])


def test_a_padded_prompt_keeps_its_positions_where_padding_is_dropped():
    """Keys are rotated already: their places stay, so offsets become negative."""
    layer, x = MultiHead(12, 3, Softmax(), Rope()).double(), torch.randn(1, 9, 12).double()
    mask = torch.arange(9)[None] >= 3
    whole = layer(x, causal=True, mask=mask)
    _, state = layer.step(x[:, :6], layer.start(1), mask=mask[:, :6])
    state = state.drop_places(3)
    assert (state.length, state.offsets.tolist(), state.attention.mask) == (3, [-3], None)
    near(layer.step(x[:, 6:], state)[0], whole[:, 6:])


def test_bad_input_a_convolution_in_one_of_two_states():
    states = [MultiHead(12, 3, Linear(), convolution=part).start(1) for part in (None, ShortConvolution(12))]
    for first, second in (states, states[::-1]):
        with pytest.raises(ValueError, match="states cannot be joined: 1 of 2 have a convolution"):
            first.join(second)
    with pytest.raises(KeyError, match="convolution"):
        states[1].with_tensors(states[0].tensors())


def test_bad_input_rows_of_different_lengths_under_absolute_positions():
    class Absolute(Positions):
        gives = frozenset({"bias"})

        @classmethod
        def from_sizes(cls, sizes):
            return cls()

        def bias(self, q, query_index, key_index):
            return (-key_index.to(q.dtype)).expand(1, q.shape[1], q.shape[2], -1)

    layer, x = MultiHead(12, 3, Softmax(), Absolute()).double(), torch.randn(2, 11, 12).double()
    state, *_ = late_rows(layer, x)
    with pytest.raises(ValueError, match="'Absolute' give a bias of absolute positions.* decode them one by one"):
        layer.step(x[[0, 1, 1], 6:7], state)


def contexts():
    """Contexts of five and three places, of which two are hidden."""
    hidden = torch.tensor([[True, False, True], [True, False, False]])
    return Context(torch.randn(1, 3, 5, 2), torch.randn(1, 3, 5, 7)), Context(
        torch.randn(2, 3, 3, 2), torch.randn(2, 3, 3, 7), hidden
    )


def test_contexts_of_different_lengths():
    first, second = contexts()
    joined = first.join(second)
    assert joined.mask.tolist() == [
        [True] * 5,
        [False, False, True, False, True],
        [False, False, True, False, False],
    ]
    assert torch.equal(joined.k[1:, :, 2:], second.k)
    assert torch.equal(joined.v[:1], first.v)
    rest = joined.select(torch.tensor([2, 1])).compact()
    assert rest.mask.tolist() == [[True, False], [True, True]]
    assert torch.equal(rest.v, second.v[[1, 0]][:, :, [0, 2]])
    assert rest.bytes == 4 * 2 * 3 * 2 * (2 + 7)
    alone = joined.select(torch.tensor([2])).compact()
    assert (alone.mask, alone.k.shape[2]) == (None, 1)
    assert (first.compact(), first.drop_places(2)) == (first, first)
    assert first.join(first).mask is None


def test_a_context_of_tensors_is_the_same_context():
    for context in contexts():
        again = context.with_tensors(context.tensors())
        assert all(torch.equal(again.tensors()[name], x) for name, x in context.tensors().items())
        assert again.rows == len(context.k)


def test_bad_input_contexts_that_differ():
    first, second = contexts()
    message = "states cannot be joined: v of one has shape (1, 3, 5, 7), torch.float32 on cpu, that of another"
    with pytest.raises(ValueError, match=re.escape(message)):
        first.join(Context(second.k, second.v[..., :5]))
