from dataclasses import replace

import pytest
import torch
from torch import nn

from qkv.decode import SearchLimits, beam, greedy
from qkv.models import EncoderDecoder, EncoderDecoderConfig
from qkv.models.builders import HeadNorm
from tests.models.sequences import padded, walk
from tests.models.states import advance, check_forked, check_independent, check_saved

SOURCES, TARGETS = 19, 23
GOES = [
    ("softmax", "none"),
    ("softmax", "sinusoidal"),
    ("softmax", "learned"),
    ("softmax", "rope"),
    ("softmax", "alibi"),
    ("softmax", "t5"),
    ("softmax", "shaw"),
    ("additive", "learned"),
    ("additive", "alibi"),
    ("additive", "t5"),
    ("taylor", "sinusoidal"),
    ("taylor", "rope"),
    ("taylor(order=4)", "learned"),
    ("linear", "sinusoidal"),
    ("linear", "rope"),
    ("elu", "sinusoidal"),
    ("elu", "learned"),
]


def small(**options):
    sizes = {"dim": 24, "heads": 3, "hidden_dim": 40, "encoder_layers": 2, "decoder_layers": 2, "max_length": 17}
    model = EncoderDecoder(EncoderDecoderConfig(**{**sizes, **options}), SOURCES, TARGETS)
    return model.double().eval()


def check_steps(model):
    source, mask = padded(5, 11, SOURCES)
    target, _ = padded(5, 13, TARGETS)
    expected = model(source, target, mask)
    torch.testing.assert_close(walk(model, model.start(source, mask), target), expected, rtol=0, atol=1e-12)
    assert expected.shape == (5, 13, TARGETS)


@pytest.mark.parametrize(("attention", "positions"), GOES)
def test_token_by_token_equals_all_at_once(attention, positions):
    check_steps(small(attention=attention, positions=positions, key_dim=8))


@pytest.mark.parametrize("cross", ["softmax", "taylor", "additive", "linear", "elu"])
@pytest.mark.parametrize("convolution", [0, 3])
def test_every_cross_attention(cross, convolution):
    check_steps(small(cross=cross, convolution=convolution))


def test_narrow_keys_and_no_feed_forward():
    check_steps(small(attention="taylor", key_dim=4, hidden_dim=0))


@pytest.mark.parametrize("attention", ["softmax", "taylor", "linear", "elu", "additive", "linear,softmax/taylor"])
@pytest.mark.parametrize("convolution", [0, 3])
def test_a_row_alone_equals_itself_in_a_padded_batch(attention, convolution):
    model = small(attention=attention, cross=attention.split(",")[0], convolution=convolution)
    (source, mask), (target, target_mask) = padded(7, 11, SOURCES), padded(7, 13, TARGETS)
    together = model(source, target, mask)
    for row, (read, written) in enumerate(zip(mask.sum(1), target_mask.sum(1), strict=True)):
        alone = model(source[row : row + 1, :read], target[row : row + 1, :written])
        torch.testing.assert_close(alone[0], together[row, :written], rtol=0, atol=1e-12)


def test_a_later_target_token_changes_nothing_before_it():
    model = small(attention="taylor")
    source, mask = padded(2, 11, SOURCES)
    target = torch.randint(4, TARGETS, (2, 13))
    other = target.clone()
    other[:, 7] = 4 + (other[:, 7] - 3) % (TARGETS - 4)
    before, after = model(source, target, mask), model(source, other, mask)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-12)
    assert (before[:, 7:] - after[:, 7:]).abs().amax((0, 2)).min() > 1e-6


@pytest.mark.parametrize("attention", ["softmax", "taylor"])
def test_beam_scores_are_those_of_a_parallel_pass(attention):
    model = small(attention=attention, cross=attention)
    with torch.no_grad():
        model.lm_head.weight *= 3
        model.lm_head.bias[2] += 2
    source, mask = padded(8, 11, SOURCES)
    with torch.inference_mode():
        found = beam(model, source, mask, SearchLimits(9), beams=4, n_best=4)
        straight = greedy(model, source, mask, SearchLimits(9))
        alone = beam(model, source, mask, SearchLimits(9), beams=1)
    assert [one.tokens for (one,) in alone] == [one.tokens for one in straight]
    checked = 0
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            path = torch.tensor([[*hypothesis.tokens, 2][:9]])
            given = torch.cat((torch.tensor([[1]]), path[:, :-1]), 1)
            with torch.no_grad():
                logits = model(source[row : row + 1], given, mask[row : row + 1])
            logits[..., :2] = -torch.inf
            total = logits.log_softmax(-1).gather(-1, path[..., None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-12)
            checked += 1
    assert checked == 32


@pytest.mark.parametrize(("attention", "positions"), GOES)
def test_every_parameter_gets_a_gradient(attention, positions):
    model = small(attention=attention, positions=positions, cross="additive", convolution=3).train()
    (source, mask), (target, _) = padded(5, 11, SOURCES), padded(5, 13, TARGETS)
    model(source, target, mask).square().sum().backward()
    nothing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # adding the same to all scores of a row changes no softmax
    assert [name for name in nothing if not name.endswith("key.bias")] == []


def test_heads_that_sum_instead_of_averaging_are_normed():
    """Of 4 self-attentions and 2 cross attentions, those of the linear kind; each norm is as wide as a head."""
    normed = [name for name, module in small(attention="linear").named_modules() if isinstance(module, nn.RMSNorm)]
    assert normed == [f"{side}.{block}.attention.output_norm" for side in ("encoder", "decoder") for block in (0, 1)]
    crossed = small(attention="taylor", cross="linear")
    shapes = [module.normalized_shape for module in crossed.modules() if isinstance(module, nn.RMSNorm)]
    assert shapes == [(8,), (8,)]


def test_without_an_encoder_the_past_may_fade_and_be_out_of_sight():
    for options in ({"attention": "taylor", "positions": "alibi"}, {"attention": "softmax(window=4)"}):
        model = small(encoder_layers=0, **options)
        assert model(torch.full((1, 5), 5), torch.full((1, 6), 5)).shape[:2] == (1, 6)


def test_linear_heads_are_the_same_function_in_every_precision():
    """Their norm adds one epsilon to small outputs: to those of vectors as small as these it is what counts."""
    model = small(attention="linear").float()
    with torch.no_grad():
        for block in model.encoder:
            block.attention.value.weight.mul_(1e-4)
            block.attention.value.bias.zero_()
    source, target = torch.randint(4, 9, (2, 5)), torch.randint(4, 9, (2, 5))
    narrow, wide = model(source, target), model.double()(source, target)
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-4)
    norm = HeadNorm(8)
    x = 1e-3 * torch.randn(5, 8)
    assert torch.equal(norm(x), nn.RMSNorm(8)(x))


def test_the_number_of_parameters_by_hand():
    """dim 24, hidden 40, 2 + 2 blocks, each sum written as its layers stand."""
    attention, feed_forward, norm = 4 * (24 * 24 + 24), 24 * 40 + 40 + 40 * 24 + 24, 48
    reading, writing = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    expected = (19 + 23) * 24 + 2 * reading + 2 * writing + 2 * norm + 24 * 23 + 23
    assert sum(p.numel() for p in small().parameters()) == expected == 24495


def test_parity_with_torch():
    """Torch's own layers, with our weights in them."""
    model = small(positions="none")
    encoder = nn.TransformerEncoderLayer(24, 3, 40, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64)
    source, mask = padded(5, 11, SOURCES)
    x = model.source_embedding(source) * 24**0.5
    for block in model.encoder:
        heads, feed = block.attention, block.feed_forward
        parts = (heads.query, heads.key, heads.value)
        encoder.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([part.weight for part in parts]),
                "self_attn.in_proj_bias": torch.cat([part.bias for part in parts]),
                "self_attn.out_proj.weight": heads.output.weight,
                "self_attn.out_proj.bias": heads.output.bias,
                "linear1.weight": feed.up.weight,
                "linear1.bias": feed.up.bias,
                "linear2.weight": feed.down.weight,
                "linear2.bias": feed.down.bias,
                "norm1.weight": block.around_attention.norm.weight,
                "norm1.bias": block.around_attention.norm.bias,
                "norm2.weight": block.around_feed_forward.norm.weight,
                "norm2.bias": block.around_feed_forward.norm.bias,
            }
        )
        x = encoder(x, src_key_padding_mask=~mask)
    expected = model.decoder[1].project_context(model.encoder_norm(x), mask)
    context = model.start(source, mask).contexts[1]
    seen = mask[:, None, :, None]
    torch.testing.assert_close(context.k * seen, expected.k * seen, rtol=0, atol=1e-12)


def test_too_long_a_sequence_is_refused():
    model, words = small(), torch.full((1, 18), 5)
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        model(words, words[:, :3])
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        model(words[:, :3], words)
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        walk(model, model.start(words[:, :3], None), words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        ({"hidden_dim": -1}, "hidden_dim must be at least 0, got -1"),
        ({"heads": 5}, "heads=5 must divide dim=24"),
        ({"attention": "sofmax"}, "unknown attention kind 'sofmax'; did you mean 'softmax'?"),
        ({"positions": "ropes"}, "unknown position scheme 'ropes'; did you mean 'rope'?"),
        ({"attention": "taylor", "positions": "t5"}, "positions 't5' give a bias, which attention kind 'taylor'"),
        *[
            ({"attention": kind, "positions": "alibi"}, f"'alibi' make attention kind '{kind}' fade the past")
            for kind in ("taylor", "linear", "elu")
        ],
        ({"attention": "softmax(window=4)"}, "attention has window=4, but an encoder is bidirectional; leave it out"),
        ({"cross": "softmax(window=4)"}, "cross has window=4, but a window is relative"),
        (
            {"key_dim": 7, "positions": "rope"},
            "positions 'rope' rotate pairs of channels, so key_dim must be even, got 7",
        ),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        small(**options)


BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
STATES = [
    *(("softmax", cross, "rope") for cross in ("softmax", "taylor", "additive", "linear", "elu")),
    *(("softmax", "softmax", scheme) for scheme in ("none", "sinusoidal", "learned", "alibi", "t5", "shaw")),
    ("taylor", "softmax", "sinusoidal"),
    ("linear", "taylor", "rope"),
    ("softmax/delta+forget+write", "softmax", "none"),
]


def tiny(attention="softmax", cross="softmax", positions="rope", dtype=torch.float64):
    options = {"dim": 12, "heads": 2, "hidden_dim": 10, "max_length": 31, "convolution": 3}
    model = small(attention=attention, cross=cross, positions=positions, **options).to(dtype)
    nn.init.normal_(model.lm_head.weight)  # so that no two tokens are nearly as likely
    return model


def sources(model, *lengths):
    """One state for each source."""
    with torch.inference_mode():
        return [model.start(torch.randint(4, SOURCES, (1, length)), None) for length in lengths]


def ragged(model):
    """The state of three rows, of which one entered late, with sources of other lengths."""
    source, mask = padded(2, 5, SOURCES)
    with torch.inference_mode():
        _, state = advance(model, model.start(source, mask), torch.randint(4, TARGETS, (2, 3)))
        return state.join(*sources(model, 7))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("attention", "cross", "positions"), STATES)
def test_a_saved_state_continues_with_the_same_bits(attention, cross, positions, dtype, tmp_path):
    model = tiny(attention, cross, positions, dtype)
    check_saved(model, ragged(model), torch.randint(4, TARGETS, (3, 4)), tmp_path / "x.safetensors")


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("attention", "cross", "positions"), STATES)
def test_a_row_does_not_depend_on_the_others(attention, cross, positions, dtype):
    model = tiny(attention, cross, positions, dtype)
    check_independent(model, sources(model, 3, 7, 2, 11), BOUNDS[dtype])


def test_blocks_that_share_a_mask_are_saved(tmp_path):
    """A file has no tensors that share memory."""
    model, (source, mask) = tiny(), padded(3, 5, SOURCES)
    with torch.inference_mode():
        state = model.start(source, mask)
    assert state.contexts[0].mask is state.contexts[1].mask
    check_saved(model, state, torch.randint(4, TARGETS, (3, 4)), tmp_path / "x.safetensors")


def test_forks_do_not_disturb_each_other():
    model = tiny()
    check_forked(model, ragged(model), *torch.randint(4, TARGETS, (2, 3, 5)))


def test_source_places_that_no_row_needs_are_dropped():
    model = tiny()
    state = ragged(model)
    assert (state.rows, state.lengths, state.length) == (3, [3, 3, 0], 3)
    late = state.select(torch.tensor([2])).compact()
    assert (late.length, late.lengths, late.padding) == (0, [0], None)
    short = state.select(torch.tensor([0, 1])).compact()
    assert (short.contexts[0].k.shape[2], late.contexts[0].k.shape[2]) == (5, 7)
    assert late.contexts[0].mask is None
    blocks, contexts = 2 * 2 * (2 * 3 * 12 + 2 * 12) * 8, 2 * 2 * (2 * 5 * 12) * 8  # keys, values, convolution
    assert short.bytes == blocks + contexts


def test_bad_input_states_of_different_models_are_not_joined():
    with pytest.raises(ValueError, match="they are of classes KVCache and RecurrentState; join states of one model"):
        sources(tiny(), 3)[0].join(*sources(tiny("taylor"), 3))
    other = sources(tiny(), 3)[0]
    with pytest.raises(ValueError, match=r"they have \[2, 1\] contexts; join states of one model"):
        other.join(replace(other, contexts=other.contexts[:1]))
