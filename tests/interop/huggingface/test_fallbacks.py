"""Recurrent layers of transformers, theirs against ours: outputs, states and gradients of whole tiny models."""

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from qkv.attention import parse
from qkv.interop.huggingface import fallbacks, recurrent
from qkv.interop.huggingface.fallbacks import replace_fallbacks, restore_fallbacks
from tests.interop.huggingface.recurrences import (
    BATCH,
    HEADS,
    KEY_DIM,
    VALUE_DIM,
    delta_inputs,
    float64,
    normal,
    scan_inputs,
)
from tests.interop.huggingface.recurrent_models import CACHE, MODELS, kimi_linear, mamba2, qwen3_next, states, tokens
from tests.interop.models import llama

LAYERS = {
    "qwen3_next": "Qwen3NextGatedDeltaNet",
    "kimi_linear": "KimiLinearDeltaAttention",
    "mamba2": "Mamba2Mixer",
    "minimax": "MiniMaxLightningAttention",
}
EACH = pytest.mark.parametrize("model", MODELS)
SIDES = pytest.mark.parametrize("side", ["left", "right"])


def near(actual, expected):
    """Equal to 1e-5 of the largest value."""
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) <= 1e-5 * float(expected.detach().abs().max())


def both(built, compute):
    """Return `compute()` of their fallbacks, then of ours."""
    theirs = compute()
    replace_fallbacks(built)
    try:
        return theirs, compute()
    finally:
        restore_fallbacks(built)


@torch.no_grad()
def prefill(model, built, batch, **options):
    """Return logits and the recurrent states."""
    out = built(batch, use_cache=True, **options)
    return out.logits, states(out[CACHE.get(model, "past_key_values")])


def padded(side, rows=3):
    """Rows of 7, 37 and 23 tokens in one batch, and which of them are real."""
    mask = torch.tensor([[place < length for place in range(37)] for length in (7, 37, 23)[:rows]])
    mask = mask if side == "right" else mask.flip(1)
    return tokens(rows, 37) * mask, mask


@EACH
def test_outputs_and_states(model):
    built = model()
    (logits, ends), (ours, our_ends) = both(built, lambda: prefill(model, built, tokens(2, 71)))
    near(ours, logits)
    for actual, expected in zip(our_ends, ends, strict=True):
        near(actual, expected)


def gradients(built):
    built.zero_grad()
    logits = built(tokens(2, 71), use_cache=False).logits
    (logits * normal(*logits.shape, seed=2).to(logits.dtype)).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in built.named_parameters() if parameter.grad is not None}


def gradient_errors(built):
    """Return the largest error of our gradient of each parameter, against theirs in float64."""
    _, ours = both(built, lambda: gradients(built))
    with float64():
        exact = gradients(built.double())
    assert len(exact) > 10
    return {name: float((ours[name] - x).abs().max() / x.abs().max().clamp(min=1e-9)) for name, x in exact.items()}


@EACH
def test_gradients(model):
    errors = gradient_errors(model().train())
    assert max(errors.values()) <= 1e-5, errors


def test_gradients_of_strong_gates():
    # rates of ten per token and more, as a new Qwen3-Next has them: little passes the gates, and in float32 the small
    # gradient of the gates is the difference of large sums
    built = qwen3_next().train()
    torch.nn.init.uniform_(built.model.layers[0].linear_attn.A_log, 1, 2.8)
    errors = gradient_errors(built)
    gates = [errors.pop(f"model.layers.0.linear_attn.{name}") for name in ("A_log", "dt_bias", "in_proj_ba.weight")]
    assert max(gates) <= 5e-4
    assert max(errors.values()) <= 2e-5


@EACH
@SIDES
@pytest.mark.parametrize("rows", [3, 1])
def test_padding(model, side, rows):
    built, (batch, mask) = model(), padded(side, rows)
    # positions of the softmax layer start at the first real token
    options = {"attention_mask": mask.long(), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    (logits, ends), (ours, our_ends) = both(built, lambda: prefill(model, built, batch, **options))
    near(ours[mask], logits[mask])
    for actual, expected in zip(our_ends, ends, strict=True):
        near(actual, expected)
    for row, real, given in zip(ours, mask, batch, strict=True):
        near(row[real], prefill(model, built, given[real][None])[0][0])


@EACH
@SIDES
def test_states_after_padding(model, side):
    # at the end of a row padding still forgets, and writes what leaks through the short convolution: only a row that is
    # padded at its start keeps its state, in their fallbacks and in ours
    built, (batch, mask) = model(), padded(side)
    alone = prefill(model, built, batch[:1, mask[0]])[1][0]
    options = {"attention_mask": mask.long(), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    _, (_, ends) = both(built, lambda: prefill(model, built, batch, **options))
    difference = float((ends[0][:1] - alone).abs().max()) / float(alone.abs().max())
    assert (difference <= 1e-5) == (side == "left")


@pytest.mark.parametrize("model", [qwen3_next, kimi_linear, mamba2])
def test_a_mask_keeps_the_state(model, monkeypatch):
    # the same arguments with the mask of our contract: padding at the end neither writes nor forgets
    built, (batch, mask) = model(), padded("right")
    alone = prefill(model, built, batch[:1, mask[0]])[1][0]

    def masked(kind):
        step = parse(kind).step
        return SimpleNamespace(step=lambda *given, **gates: step(*given, mask=mask, **gates))

    monkeypatch.setattr(recurrent, "_mechanism", masked)
    _, (_, ends) = both(built, lambda: prefill(model, built, batch, attention_mask=mask.long()))
    near(ends[0][:1], alone)


@EACH
def test_prefill_in_pieces_then_single_steps(model):
    built, batch = model(), tokens(2, 43)

    @torch.no_grad()
    def decode():
        found, options = [], {}
        for piece in batch.split([17, 5, 1, 1, 16, 1, 1, 1], 1):
            out = built(piece, use_cache=True, **options)
            options = {CACHE.get(model, "past_key_values"): out[CACHE.get(model, "past_key_values")]}
            found.append(out.logits)
        return torch.cat(found, 1), states(next(iter(options.values())))

    (logits, ends), (ours, our_ends) = both(built, decode)
    near(ours, logits)
    near(ours, prefill(model, built, batch)[0])
    for actual, expected in zip(our_ends, ends, strict=True):
        near(actual, expected)


@EACH
def test_generation(model):
    built, (batch, mask) = model(), padded("left")
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 2}
    theirs, ours = both(built, lambda: built.generate(batch, attention_mask=mask.long(), **options))
    assert torch.equal(ours, theirs)


@EACH
def test_replacing_twice_and_restoring(model):
    built = model()
    before = _functions(built)
    assert replace_fallbacks(built) == replace_fallbacks(built) == [LAYERS[model.__name__]]
    assert all(a is not b for a, b in zip(_functions(built), before, strict=True))
    restore_fallbacks(built)
    restore_fallbacks(built)
    assert all(a is b for a, b in zip(_functions(built), before, strict=True))


def _functions(built):
    return [getattr(owner, name) for _, owner, name, *_ in fallbacks._places(built)]


def test_bad_input_without_recurrent_layers():
    with pytest.raises(ValueError, match="LlamaForCausalLM has no layer that qkv can compute"):
        replace_fallbacks(llama())


def test_bad_input_without_a_model():
    with pytest.raises(TypeError, match="model must be an nn.Module, got str"):
        replace_fallbacks("qwen")


def test_bad_input_with_kernels_installed(monkeypatch):
    monkeypatch.setattr(fallbacks, "find_spec", lambda package: package)
    with pytest.raises(ValueError, match="Qwen3NextGatedDeltaNet already runs the kernels of the package fla"):
        replace_fallbacks(qwen3_next())


@pytest.mark.parametrize("name", ["cu_seqlens", "seq_idx"])
@pytest.mark.parametrize("model", [qwen3_next, kimi_linear, mamba2])
def test_bad_input_packed_rows(model, name):
    built = model()
    replace_fallbacks(built)
    (function,) = _functions(built)
    restore_fallbacks(built)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        function(*[torch.zeros(1)] * (5 if model is mamba2 else 3), **{name: torch.tensor([0, 3, 5])})


def test_keys_that_are_not_normalized():
    # no model asks for it, and the kind delta always normalizes: theirs computes it
    q, k, v, g, beta = (x.float() for x in delta_inputs())
    theirs = qwen.torch_chunk_gated_delta_rule(q, k / 9, v, g=g, beta=beta)[0]
    assert torch.equal(
        recurrent.replace_delta_rule(qwen.torch_chunk_gated_delta_rule)(q, k / 9, v, g=g, beta=beta)[0], theirs
    )


STEPS = {
    "gated delta rule": (False, qwen.torch_recurrent_gated_delta_rule),
    "KDA": (True, kimi.recurrent_kimi_delta_attention),
}


@pytest.mark.parametrize("name", STEPS)
def test_single_steps_of_delta(name):
    # replaced models step by theirs, which is faster; ours computes the same
    channels, theirs = STEPS[name]
    ours, states = recurrent.replace_delta_rule(theirs), [None, None]
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    for seed in range(5):
        q, k, v, g, beta = (x.float() for x in delta_inputs(1, channels, seed))
        found = [
            f(q, k, v, g=g, beta=beta, initial_state=s, **options) for f, s in zip((ours, theirs), states, strict=True)
        ]
        states = [state for _, state in found]
        near(found[0][0], found[1][0])
        near(*states)


def test_single_steps_of_mamba2():
    ours, state = recurrent.replace_mamba2_scan(mamba.mamba2_chunk_scan), torch.zeros(BATCH, HEADS, VALUE_DIM, KEY_DIM)
    theirs = state.clone()
    for seed in range(5):
        x, dt, a, b, c = (y.float() for y in scan_inputs(1, seed))
        out, state = ours(x, dt, a, b, c, dt_softplus=True, initial_states=state, return_final_states=True)
        wide = dt[:, 0, :, None].expand(-1, -1, VALUE_DIM), a[:, None, None].expand(-1, VALUE_DIM, KEY_DIM)
        near(out[:, 0], mamba.mamba2_selective_state_update(theirs, x[:, 0], *wide, b[:, 0], c[:, 0], dt_softplus=True))
        near(state, theirs)


SAME = {
    "qwen3_next": ["qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"],
    "kimi_linear": ["bailing_hybrid", "glm5_next"],
    "mamba2": ["bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2"],
}
"""Architectures that call the same functions as one that is tested here."""


@pytest.mark.parametrize("name", SAME)
def test_other_architectures_have_the_same_functions(name):
    tested = _sources(name)
    assert tested
    for other in SAME[name]:
        assert _sources(other) == tested


def _sources(architecture):
    module = importlib.import_module(f"transformers.models.{architecture}.modeling_{architecture}")
    found = {name: getattr(module, name) for name in fallbacks.FUNCTIONS if hasattr(module, name)}
    return {name: inspect.getsource(inspect.unwrap(function)) for name, function in found.items()}
