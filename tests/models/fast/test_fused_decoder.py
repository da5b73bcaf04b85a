"""A fused decoder computes what the model computes, with the model's states; the model is the independent part."""

import warnings

import pytest
import torch

from qkv.attention import kinds
from qkv.decode import SearchLimits, beam, greedy
from qkv.models import Decoder, DecoderConfig, Recurrent, RecurrentConfig
from qkv.models.fast.fused_decoder import FusedDecoderBlock, fast_form, fuse, quantize, unfusable_reason
from qkv.models.state_file import fingerprint, load_state, save_state
from qkv.positions import schemes

TOKENS, LONGEST, ROWS = 37, 23, 3
SIZES = {"dim": 20, "heads": 2, "hidden_dim": 29, "layers": 2, "max_length": LONGEST}
KINDS = (*kinds, "softmax(window=5)", "taylor(order=4)", "delta+forget+write+output", "linear+forget", "softmax,linear")
SCHEMES = ("none", *schemes)


def built(dtype=torch.float64, **changes):
    model = Decoder(DecoderConfig(**{**SIZES, **changes}), TOKENS).to(dtype)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))  # norms and biases that are not ones and zeros
    return model.eval()


def possible_pairs():
    found = []
    for kind in KINDS:
        for positions in SCHEMES:
            try:
                Decoder(DecoderConfig(**SIZES, attention=kind, positions=positions), TOKENS)
            except ValueError:
                continue
            found.append((kind, positions))
    return found


PAIRS = possible_pairs()


def assert_same(found, wanted):
    """1e-5 in float32 and 1e-12 in float64, of the largest logit."""
    tolerance = 1e-12 if wanted.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * float(wanted.abs().max().clamp(min=1)))


def logits_by_steps(model, tokens, prompt, piece):
    """Every logit after the prompt: one piece of several tokens, then one by one."""
    state = model.start(tokens[:, :prompt], None)
    first, state = model.extend(tokens[:, prompt : prompt + piece], state)
    rest = []
    for place in range(prompt + piece, tokens.shape[1]):
        logits, state = model.step(tokens[:, place], state)
        rest.append(logits)
    return torch.cat((first, torch.stack(rest, 1)), 1)


def test_there_are_pairs_to_test():
    assert len(PAIRS) > 40
    assert {positions for _, positions in PAIRS} == set(SCHEMES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "positions"), PAIRS)
@torch.inference_mode()
def test_every_logit_is_the_model_s(kind, positions, dtype):
    model = built(dtype, attention=kind, positions=positions)
    fused, tokens = fuse(model), torch.randint(0, TOKENS, (ROWS, LONGEST))
    wanted = model(tokens)
    assert_same(fused(tokens), wanted)
    assert_same(logits_by_steps(fused, tokens, 7, 5), wanted[:, 7:])


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_dim": 0},
        {"activation": "relu"},
        {"activation": "tanh"},
        {"tied": False},
        {"key_dim": 6},
        {"convolution": 3},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.inference_mode()
def test_other_parts(changes, dtype):
    model = built(dtype, **changes)
    tokens = torch.randint(0, TOKENS, (ROWS, LONGEST))
    assert_same(logits_by_steps(fuse(model), tokens, 0, 1), model(tokens))


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("attention", ["softmax", "taylor", "delta"])
@torch.inference_mode()
def test_padded_and_joined_rows(attention, positions):
    """Rows that begin at different places have positions and masks of their own."""
    model = built(attention=attention, positions=positions)
    fused, tokens = fuse(model), torch.randint(0, TOKENS, (2, 11))
    long, short = fused.start(tokens[:1, :9], None), fused.start(tokens[1:, :4], None)
    state = long.join(short)
    padded = torch.cat((tokens[1:, :5] * 0, tokens[1:, :4]), 1)
    mask = torch.arange(9) >= torch.tensor([[0], [5]])
    together = fused.start(torch.cat((tokens[:1, :9], padded)), mask)
    for place in range(2):
        given = torch.stack((tokens[0, 9 + place], tokens[1, 4 + place]))
        logits, state = fused.step(given, state)
        padded_logits, together = fused.step(given, together)
        wanted = torch.stack((model(tokens[:1, : 10 + place])[0, -1], model(tokens[1:, : 5 + place])[0, -1]))
        assert_same(logits, wanted)
        assert_same(padded_logits, wanted)


@pytest.mark.parametrize("attention", ["softmax", "taylor", "delta"])
@torch.inference_mode()
def test_states_are_shared_with_the_model(attention, tmp_path):
    """A state of one is continued by the other: forked, reordered, or read from a file."""
    model = built(attention=attention)
    fused, tokens = fuse(model), torch.randint(0, TOKENS, (ROWS, 9))
    state, rows = model.start(tokens[:, :7], None), torch.tensor([2, 0, 0])
    wanted = model(tokens[:, :8])[:, -1]
    assert_same(fused.step(tokens[:, 7], state.fork())[0], wanted)
    assert_same(fused.step(tokens[rows, 7], state.select(rows))[0], wanted[rows])
    assert_same(model.step(tokens[:, 7], fused.start(tokens[:, :7], None))[0], wanted)
    save_state(tmp_path / "start.safetensors", model, state)
    assert_same(fused.step(tokens[:, 7], load_state(tmp_path / "start.safetensors", fused))[0], wanted)


def test_the_fused_form_shares_weights_and_fingerprint():
    model = built()
    fused = fuse(model)
    assert fingerprint(fused) == fingerprint(model)
    for (name, weights), (other, shared) in zip(model.named_parameters(), fused.named_parameters(), strict=True):
        assert name == other
        assert weights is shared


def test_what_is_fused():
    """Blocks of plain parts; the others keep their step, with packed weights."""
    assert all(isinstance(block, FusedDecoderBlock) for block in fuse(built(attention="taylor")).blocks)
    mixed = fuse(built(attention="softmax,delta+forget+write"))
    assert [isinstance(block, FusedDecoderBlock) for block in mixed.blocks] == [True, False]


@pytest.mark.parametrize("rows", [1, 5])
def test_searches_find_the_same(rows):
    model, inputs = built(torch.float32), torch.randint(4, TOKENS, (rows, 3))
    fused, limits = fuse(model), SearchLimits(LONGEST - 3)
    straight, wide = [greedy(m, inputs, None, limits) for m in (model, fused)], {"beams": 5, "n_best": 3}
    beams = [[h for best in beam(m, inputs, None, limits, **wide) for h in best] for m in (model, fused)]
    for wanted, found in (straight, beams):
        assert [one.tokens for one in found] == [one.tokens for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4)


def test_with_gradients_it_is_the_plain_model():
    model = built()
    fused, tokens = fuse(model), torch.randint(0, TOKENS, (ROWS, 5))
    logits, _ = fused.step(tokens[:, 4], fused.start(tokens[:, :4], None))
    logits.sum().backward()
    found = [weights.grad.clone() for weights in model.parameters()]
    model.zero_grad()
    model(tokens)[:, -1].sum().backward()
    for mine, weights in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(mine, weights.grad, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_too_long_is_refused():
    fused = fuse(built())
    state = fused.start(torch.zeros(1, LONGEST, dtype=torch.int64), None)
    with pytest.raises(ValueError, match=f"{LONGEST + 1}.*{LONGEST}"):
        fused.step(torch.tensor([4]), state)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Recurrent(RecurrentConfig(dim=12), 5, 5).eval(), "only a Decoder has one, not Recurrent"),
        (lambda: built().train(), "the model is in training mode"),
        (lambda: built(torch.float16), "its weights are torch.float16"),
        (lambda: built().to("meta"), "the model is on meta, and this form is for the CPU"),
        (lambda: fuse(built()), "it is a fused form already"),
    ],
)
def test_what_cannot_be_fused_says_so(make, reason):
    model = make()
    assert fast_form(model) is model
    assert reason in unfusable_reason(model)
    with pytest.raises(ValueError, match=f"model has no fused form: {reason}"):
        fuse(model)
    with pytest.raises(ValueError, match=f"model has no int8 form: {reason}"):
        quantize(model)


def test_fast_form_is_fused():
    model = built()
    assert unfusable_reason(model) is None
    assert isinstance(fast_form(model).blocks[0], FusedDecoderBlock)


def test_int8_needs_float32():
    with pytest.raises(ValueError, match="int8 weights are made from float32, got torch.float64"):
        quantize(built())


@pytest.mark.parametrize("attention", ["softmax", "taylor", "delta+forget+write"])
@torch.inference_mode()
def test_int8_is_near_and_independent_of_the_batch(attention):
    model = built(torch.float32, attention=attention, dim=64, heads=4)
    rounded, tokens = quantize(model), torch.randint(0, TOKENS, (5, 17))
    wanted, found = model(tokens), rounded(tokens)
    assert 1e-4 < float((found - wanted).norm() / wanted.norm()) < 3e-2
    torch.testing.assert_close(logits_by_steps(rounded, tokens, 3, 4), found[:, 3:], rtol=0, atol=2e-2)
    torch.testing.assert_close(rounded(tokens[2:3])[0], found[2], rtol=0, atol=2e-2)


def test_packing_warns_of_nothing():
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        quantize(built(torch.float32)).start(torch.zeros(1, 3, dtype=torch.int64), None)
