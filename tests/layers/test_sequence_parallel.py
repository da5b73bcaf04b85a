"""Layers of a part of each sequence."""

import pytest
import torch

from qkv.attention import Linear
from qkv.attention.parallel.group import SequencePart
from qkv.layers import DecoderBlock, FeedForward, MultiHead, PreNorm, ProjectionConvolution, ShortConvolution
from tests.attention.parallel.one_process import one_process


@pytest.mark.parametrize("convolution", [ShortConvolution(6, 4), ProjectionConvolution(6, 4)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_part_that_is_the_whole_is_convolved_alike(convolution, causal):
    x, mask = torch.randn(2, 7, 6), torch.rand(2, 7) < 0.8
    with one_process() as group:
        found = convolution(x, causal=causal, mask=mask, part=SequencePart(group, (7,)))
    assert torch.equal(found, convolution(x, causal=causal, mask=mask))


def test_a_convolution_stays_inside_documents():
    convolution, x = ShortConvolution(6, 4).double(), torch.randn(1, 7, 6, dtype=torch.float64)
    found = convolution(x, causal=True, positions=torch.tensor([[0, 1, 2, 0, 0, 1, 2]]))
    wanted = [convolution(piece, causal=True) for piece in x.split([3, 1, 3], 1)]
    torch.testing.assert_close(found, torch.cat(wanted, 1), rtol=0, atol=1e-15)


def test_cross_attention_has_no_parts():
    def heads():
        return MultiHead(8, 2, Linear())

    block = DecoderBlock(heads(), FeedForward(8, 6), lambda: PreNorm(8), heads())
    x = torch.randn(1, 3, 8)
    with one_process() as group, pytest.raises(ValueError, match="cross-attention"):
        block(x, context=block.project_context(x), part=SequencePart(group, (3,)))
