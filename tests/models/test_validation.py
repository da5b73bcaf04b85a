"""What models make of masks: those they refuse, and where they do not look at them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from qkv.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    Recurrent,
    RecurrentConfig,
    mean_pool,
)
from qkv.models.fast.fused import FusedEncoderDecoder
from qkv.models.validation import values_readable

SIZES = {"dim": 16, "heads": 2, "hidden_dim": 20, "positions": "rope"}
TOKENS = torch.randint(1, 19, (3, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(7) < torch.tensor([[7], [4], [2]])
ALL = torch.ones(3, 7, dtype=torch.bool)


def encoder():
    return Encoder(EncoderConfig(**SIZES), 19).eval()


def decoder():
    return Decoder(DecoderConfig(**SIZES), 19).eval()


def encoder_decoder():
    return EncoderDecoder(EncoderDecoderConfig(**SIZES), 19, 19).eval()


def recurrent():
    return Recurrent(RecurrentConfig(dim=16), 19, 19).eval()


CALLS = {
    "encoder": lambda mask: encoder()(TOKENS, mask=mask),
    "encoder, read": lambda mask: encoder().encode(TOKENS, mask=mask),
    "encoder, pooled": lambda mask: encoder().pool_first(torch.zeros(3, 7, 16), mask),
    "decoder": lambda mask: decoder()(TOKENS, mask),
    "decoder, start": lambda mask: decoder().start(TOKENS, mask),
    "encoder_decoder": lambda mask: encoder_decoder()(TOKENS, TOKENS, mask),
    "encoder_decoder, start": lambda mask: encoder_decoder().start(TOKENS, mask),
    "folded": lambda mask: FusedEncoderDecoder(encoder_decoder()).start(TOKENS, mask),
    "recurrent": lambda mask: recurrent()(TOKENS, TOKENS, mask),
    "mean_pool": lambda mask: mean_pool(torch.zeros(3, 7, 16), mask),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mask", [ALL[:, :5], ALL[0], ALL.T, ALL[:1], torch.tensor(True)])
def test_a_mask_of_another_shape(call, mask):
    with pytest.raises(ValueError, match=r"mask must have shape \(batch, time\) = \(3, 7\), a bool for each"):
        CALLS[call](mask)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("mask", "what"), [(ALL.long(), "torch.int64"), (ALL.float(), "torch.float32"), (ALL.tolist(), "list")]
)
def test_a_mask_of_another_type(call, mask, what):
    with pytest.raises(TypeError, match=rf"mask must be a bool tensor \(True = a real token\), got {what}"):
        CALLS[call](mask)


@pytest.mark.parametrize("model", [encoder, decoder])
def test_tokens_whose_logits_are_wanted_are_told_by_a_mask(model):
    with pytest.raises(TypeError, match=r"at must be a bool tensor \(True = logits are wanted\), got torch.int64"):
        model()(TOKENS, at=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"at must have shape \(batch, time\) = \(3, 7\), .*got \(7,\)"):
        model()(TOKENS, at=ALL[0])


def test_where_numbers_may_be_looked_at():
    assert values_readable(MASK)
    assert not values_readable(MASK.to("meta"))
    with FakeTensorMode() as fake:
        assert not values_readable(fake.from_tensor(MASK))
    looked = []
    torch.vmap(lambda mask: looked.append(values_readable(mask)) or mask)(MASK)
    assert looked == [False]
    assert not torch.compile(lambda mask: mask & values_readable(mask), backend="eager")(MASK).any()


def forms(model):
    """The model as a function of tokens and a mask."""
    return {
        "encoder": lambda tokens, mask: model(tokens, mask=mask),
        "decoder": lambda tokens, mask: (model(tokens, mask),),
        "encoder_decoder": lambda tokens, mask: (model(tokens, tokens, mask),),
    }


MODELS = {"encoder": encoder, "decoder": decoder, "encoder_decoder": encoder_decoder}


@pytest.mark.parametrize("name", MODELS)
def test_on_the_device_meta_and_of_fake_tensors(name):
    model = MODELS[name]()
    expected = [x.shape for x in forms(model)[name](TOKENS, MASK)]
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        found = forms(model)[name](fake.from_tensor(TOKENS), fake.from_tensor(MASK))
    assert [x.shape for x in found] == expected
    found = forms(model.to("meta"))[name](TOKENS.to("meta"), MASK.to("meta"))
    assert [x.shape for x in found] == expected


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_many_masks_at_once(name):
    """`torch.vmap` over batches gives what each gives by itself at its real tokens."""
    call = forms(MODELS[name]())[name]
    tokens, masks = torch.stack((TOKENS, TOKENS.flip(0))), torch.stack((MASK, ALL))
    for batch, found in enumerate(zip(*torch.vmap(call)(tokens, masks), strict=True)):
        for one, expected in zip(found, call(tokens[batch], masks[batch]), strict=True):
            real = masks[batch] if one.dim() == 3 and name != "encoder_decoder" else ...
            torch.testing.assert_close(one[real], expected[real], rtol=0, atol=1e-5)
