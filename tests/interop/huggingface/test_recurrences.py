"""Each fallback of transformers is the recurrence of `recurrences.py`: what its arguments mean, and where."""

import pytest
import torch
from torch.nn import functional
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.minimax import modeling_minimax as minimax
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from tests.interop.huggingface.recurrences import (
    BATCH,
    GROUPS,
    HEADS,
    KEY_DIM,
    VALUE_DIM,
    delta_inputs,
    float64,
    heads_first,
    normal,
    recurrence,
    scan_inputs,
    unit,
)

PREFILL = pytest.mark.parametrize("time", [71, 1])
GATES = {
    "gated delta rule": (False, qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule),
    "KDA": (True, kimi.chunk_kimi_delta_attention, kimi.recurrent_kimi_delta_attention),
}


@pytest.fixture(autouse=True)
def _float64():
    with float64():
        yield


def near(actual, expected):
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) <= 1e-12


@pytest.mark.parametrize("form", [1, 2], ids=["chunks", "tokens"])
@pytest.mark.parametrize("name", GATES)
@PREFILL
def test_delta_rules(name, form, time):
    channels, *forms = GATES[name]
    q, k, v, g, beta = delta_inputs(time, channels)
    state = normal(BATCH, HEADS, KEY_DIM, VALUE_DIM, seed=8)
    options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    out, last = forms[form - 1](q, k, v, g=g, beta=beta, **options)
    q, k, v, g, beta = map(heads_first, (q, k, v, g, beta))
    expected, end = recurrence(unit(q), unit(k), v, -g, beta, state, KEY_DIM**-0.5)
    near(heads_first(out), expected)
    near(last, end)


@PREFILL
def test_mamba2_scan(time):
    x, dt, a, b, c = scan_inputs(time)
    bias, skip, state = normal(HEADS, seed=6), normal(HEADS, seed=7), normal(BATCH, HEADS, VALUE_DIM, KEY_DIM, seed=8)
    options = {"chunk_size": 64, "dt_softplus": True, "dt_limit": (0.01, 2.0), "return_final_states": True}
    out, last = mamba2.mamba2_chunk_scan(x, dt, a, b, c, D=skip, dt_bias=bias, initial_states=state, **options)
    expected, end = _scan(x, functional.softplus(dt + bias).clamp(0.01, 2.0), a, b, c, skip, state)
    near(out, expected)
    near(last, end)


def test_mamba2_step_has_no_limits_of_dt():
    # the prefill clamps dt to time_step_limit, the step does not: the two forms of one model differ
    x, dt, a, b, c = scan_inputs(time=1)
    bias, skip, state = normal(HEADS, seed=6), normal(HEADS, seed=7), normal(BATCH, HEADS, VALUE_DIM, KEY_DIM, seed=8)
    wide = (a[:, None, None].expand(-1, VALUE_DIM, KEY_DIM), skip[:, None].expand(-1, VALUE_DIM))
    last = state.clone()
    out = mamba2.mamba2_selective_state_update(
        last,
        x[:, 0],
        dt[:, 0, :, None].expand(-1, -1, VALUE_DIM),
        wide[0],
        b[:, 0],
        c[:, 0],
        wide[1],
        dt_bias=bias[:, None].expand(-1, VALUE_DIM),
        dt_softplus=True,
    )
    expected, end = _scan(x, functional.softplus(dt + bias), a, b, c, skip, state)
    near(out, expected[:, 0])
    near(last, end)


def _scan(x, dt, a, b, c, skip, state):
    """Mamba-2: B is the key, C the query, dt x the value; the state is (value_dim, key_dim)."""
    q, k = (heads_first(y).repeat_interleave(HEADS // GROUPS, 1) for y in (c, b))
    out, last = recurrence(q, k, heads_first(dt[..., None] * x), heads_first(-a * dt), None, state.mT)
    return heads_first(out) + skip[:, None] * x, last.mT


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_lightning(layer):
    config = minimax.MiniMaxConfig(
        hidden_size=24, num_attention_heads=3, head_dim=8, num_hidden_layers=3, block_size=16, intermediate_size=29
    )
    torch.manual_seed(0)
    config.layer_types = ["linear_attention"] * 3
    module = minimax.MiniMaxLightningAttention(config, layer)
    x, mask = normal(2, 37, 24, seed=1), torch.ones(2, 37, dtype=torch.bool)
    mask[1, :11] = False  # padding is hidden, but counts as places
    out, last = module(x, None, mask)
    projected = module.act_fn(module.qkv_proj(x)) * mask[..., None]
    q, k, v = (heads_first(y) for y in projected.unflatten(-1, (3, 24)).split(8, -1))
    rate = module.slope_rate[:, 0].expand(2, -1, 37)
    expected, end = recurrence(q, k, v, rate)
    inner = heads_first(expected).flatten(2)
    near(last, end)
    near(out, module.out_proj(torch.sigmoid(module.output_gate(x)) * module.norm(inner)))
