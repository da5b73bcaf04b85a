from functools import partial

import pytest
import torch
from torch import nn

from qkv.attention import Elu, Linear, Softmax, Taylor
from qkv.layers import DecoderBlock, EncoderBlock, FeedForward, MultiHead, PostNorm, PreNorm
from tests.layers.test_multi_head import copied


def copied_block(block, reference):
    """Copy the weights of torch's encoder layer into ours."""
    copied(block.attention, reference.self_attn, 16)
    block.feed_forward.up.load_state_dict(reference.linear1.state_dict())
    block.feed_forward.down.load_state_dict(reference.linear2.state_dict())
    block.around_attention.norm.load_state_dict(reference.norm1.state_dict())
    block.around_feed_forward.norm.load_state_dict(reference.norm2.state_dict())
    return block


@pytest.mark.parametrize(("first", "residual"), [(True, PreNorm), (False, PostNorm)])
def test_encoder_parity_with_torch(first, residual):
    reference = nn.TransformerEncoderLayer(
        16, 4, 37, 0.0, "gelu", batch_first=True, norm_first=first, dtype=torch.float64
    )
    for norm in (reference.norm1, reference.norm2):
        nn.init.normal_(norm.weight)
    block = EncoderBlock(MultiHead(16, 4, Softmax()), FeedForward(16, 37), partial(residual, 16)).double()
    x, mask = torch.randn(2, 7, 16, dtype=torch.float64), torch.ones(2, 7, dtype=torch.bool)
    mask[0, 5:] = False
    out, expected = copied_block(block, reference)(x, mask), reference(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_decoder_parity_with_torch():
    reference = nn.TransformerDecoderLayer(
        16, 4, 37, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    heads = partial(MultiHead, 16, 4, Softmax())
    block = DecoderBlock(heads(), FeedForward(16, 37), partial(PreNorm, 16), cross=heads()).double()
    copied_block(block, reference)
    copied(block.cross, reference.multihead_attn, 16)
    block.around_cross.norm.load_state_dict(reference.norm2.state_dict())
    block.around_feed_forward.norm.load_state_dict(reference.norm3.state_dict())
    x, other = torch.randn(2, 7, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    seen = torch.rand(2, 5) > 0.3
    ahead = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = reference(x, other, tgt_mask=ahead, memory_key_padding_mask=~seen)
    torch.testing.assert_close(block(x, context=block.project_context(other, seen)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", [Softmax(), Linear(chunk=3), Elu(chunk=3), Taylor(chunk=3)])
@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_decoder_steps_equal_the_whole(attention, residual):
    heads = partial(MultiHead, 16, 4, attention)
    block = DecoderBlock(heads(), FeedForward(16, 32), partial(residual, 16), cross=heads()).double()
    x, other = torch.randn(2, 9, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    context = block.project_context(other)
    state, parts = block.start(2), []
    for position in range(9):
        out, state = block.step(x[:, position : position + 1], state, context=context)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), block(x, context=context), rtol=0, atol=1e-12)


def test_context_can_be_reordered():
    heads = partial(MultiHead, 16, 4, Taylor())
    block = DecoderBlock(heads(), FeedForward(16, 32), partial(PreNorm, 16), cross=heads()).double()
    x, other = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    rows = torch.tensor([1, 0, 1])
    context = block.project_context(other, torch.rand(2, 5) > 0.3)
    out = block(x[rows], context=context.select(rows))
    torch.testing.assert_close(out, block(x, context=context)[rows], rtol=0, atol=1e-12)


def test_context_and_cross_attention_belong_together():
    heads = partial(MultiHead, 16, 4, Softmax())
    plain = DecoderBlock(heads(), FeedForward(16, 32), partial(PreNorm, 16))
    crossed = DecoderBlock(heads(), FeedForward(16, 32), partial(PreNorm, 16), cross=heads())
    x = torch.randn(2, 3, 16)
    with pytest.raises(ValueError, match="context is missing, but this block has cross-attention"):
        crossed(x)
    with pytest.raises(ValueError, match="context is given, but this block has no cross-attention"):
        plain(x, context=crossed.project_context(x))
    with pytest.raises(ValueError, match="has no cross-attention; build it with cross="):
        plain.project_context(x)


def test_feed_forward_skips_padding():
    """With `real_tokens`, their values and gradients are the same, and padding is unchanged."""
    torch.manual_seed(0)
    heads = MultiHead(12, 3, Softmax())
    block = EncoderBlock(heads, FeedForward(12, 17), partial(PostNorm, 12)).double()
    mask = torch.arange(7) < torch.tensor([[7], [4], [1]])
    x = torch.randn(3, 7, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(int(mask.sum()), 12, dtype=torch.float64)
    real = mask.flatten().nonzero()[:, 0]
    whole, short = block(x, mask)[mask], block(x, mask, real)
    torch.testing.assert_close(short[mask], whole, rtol=0, atol=1e-12)
    expected, found = (torch.autograd.grad((out * weight).sum(), x)[0] for out in (whole, short[mask]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    thoughtless = block.around_attention(x, lambda h: heads(h, mask=mask))
    assert torch.equal(short[~mask], thoughtless[~mask])
