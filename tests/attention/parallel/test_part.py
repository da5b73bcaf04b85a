"""One part of a sequence, in one process: the plain path bit for bit, and errors that name what is wrong."""

import pytest
import torch

from qkv.attention import Attention, Linear, SequenceGroup, SequenceParallel, Softmax, Taylor, kinds, parse
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequencePart
from qkv.attention.parallel.part import attend_part, exchanged_bytes
from qkv.attention.parallel.summary import SummaryOptions
from qkv.cost import Shape
from tests.attention.parallel.cases import CALLS, build, make
from tests.attention.parallel.one_process import one_process


@pytest.fixture
def group():
    with one_process() as found:
        yield found


def test_a_group_of_one_process_is_the_plain_path(group):
    for call in CALLS:
        attention, inputs = build(call), make(call)
        found = SequenceParallel(attention, group)(inputs.q, inputs.k, inputs.v, causal=call.causal, **inputs.modifiers)
        wanted = attention(inputs.q, inputs.k, inputs.v, causal=call.causal, **inputs.modifiers)
        assert torch.equal(found, wanted), call.name
    q, k, v = torch.randn(3, 2, 3, 7, 4)
    parallel = SequenceParallel(Taylor(), group)
    state = parallel.start(2, 3, 4, 4)
    out, after = parallel.step(q, k, v, state)
    assert torch.equal(out, Taylor().step(q, k, v, state)[0])
    assert after.length == 7
    shape = Shape(2, 3, 7, 7, 4, 4, causal=True)
    assert parallel.cost(shape) == Taylor().cost(shape)
    assert parallel.exchanged_bytes(shape) == 0


def test_weights_of_a_part_are_not_defined(group):
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(ValueError, match="weights are not defined for a part of a sequence"):
        SequenceParallel(Softmax(), group).weights(x, x)


@pytest.mark.parametrize("kind", sorted(kinds))
def test_every_kind_can_be_split(kind):
    assert parse(kind, key_dim=4).splits_sequences


def test_a_kind_without_summaries_names_those_that_have_them():
    class Summarizes(Linear):
        summarize = Attention.summarize

    x = torch.randn(1, 1, 3, 2)
    assert not Summarizes().splits_sequences
    with pytest.raises(ValueError, match=r"no `summarize`; use additive, delta, elu, linear, .*softmax, taylor"):
        Summarizes().summarize(x, x, Linear().start(1, 1, 2, 2))


def test_what_does_not_fit_a_part(group):
    part, x = SequencePart(group, (5,)), torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="has 5 tokens of the sequence, got 4 queries and 4 keys"):
        attend_part(Softmax(), part, x[:, :, :4], x[:, :, :4], x[:, :, :4], Modifiers(True))
    with pytest.raises(ValueError, match="a mask of pairs cannot be split"):
        attend_part(Softmax(), part, x, x, x, Modifiers(True, mask=torch.ones(1, 1, 5, 5, dtype=torch.bool)))
    with pytest.raises(ValueError, match="window=2 ends at each query's own position"):
        attend_part(Softmax(window=2), part, x, x, x, Modifiers(False))
    with pytest.raises(ValueError, match="bias must have shape"):
        attend_part(Softmax(), part, x, x, x, Modifiers(True, bias=torch.zeros(1, 2, 5, 4)))


def test_exchanged_bytes():
    """A worked example in bfloat16: one row, 16 heads of 128, 16,384 tokens at each of 8 processes."""
    shape = Shape(1, 16, 16384, 16384, 128, 128, causal=True, element_bytes=2)
    assert exchanged_bytes(Linear(), shape, 8) == 7 * (16 * 128 * 128 * 4 + 16)
    assert exchanged_bytes(Softmax(), shape, 8) == 7 * (2 * 16384 * 16 * 128 * 2 + 16)
    assert exchanged_bytes(Softmax(window=512), shape, 8) == 7 * (2 * 512 * 16 * 128 * 2 + 16)
    options = SummaryOptions(mask=True, starts=True)
    assert exchanged_bytes(Linear(), shape, 2, options) == 16 * (128 * 128 + 1) * 4 + 16
    assert exchanged_bytes(Softmax(window=512), shape, 2, options) == 2 * 512 * 16 * 128 * 2 + 512 * 9 + 16


def test_a_group_needs_processes():
    with pytest.raises(ValueError, match="start them with torchrun"):
        SequenceGroup()
