"""An encoder-decoder whose three tables are one."""

import pytest
import torch
from torch.nn import functional

from qkv.cost import Span
from qkv.models import EncoderDecoder, EncoderDecoderConfig

SIZES = {"dim": 12, "heads": 3, "hidden_dim": 10, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}


def build(tied, tokens=17):
    torch.manual_seed(0)
    return EncoderDecoder(EncoderDecoderConfig(**SIZES, tied=tied, max_length=9), tokens, tokens).double()


def test_the_three_tables_are_one():
    tied, free = build(True), build(False)
    numbers = [sum(p.numel() for p in model.parameters()) for model in (free, tied)]
    assert numbers[0] - numbers[1] == 2 * 17 * 12
    assert tied.cost(Span(2, 5, context=3)).parameters != {}
    for model, count in zip((free, tied), numbers, strict=True):
        assert sum(model.cost(Span(2, 5, context=3)).parameters.values()) == count


def test_the_gradient_is_the_sum_of_the_three():
    tied, free = build(True), build(False)
    free.load_state_dict(tied.state_dict())
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8, 9]])
    for model in (tied, free):
        logits = model(source, target)
        functional.cross_entropy(logits[0], torch.tensor([8, 9, 2])).backward()
    total = free.source_embedding.weight.grad + free.target_embedding.weight.grad + free.lm_head.weight.grad
    torch.testing.assert_close(tied.source_embedding.weight.grad, total, rtol=1e-12, atol=1e-14)


def test_two_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"needs one vocabulary .*data.shared=true.*, got 17 and 18 tokens"):
        EncoderDecoder(EncoderDecoderConfig(**SIZES, tied=True), 17, 18)
