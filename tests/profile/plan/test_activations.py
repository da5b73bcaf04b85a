import pytest
import torch
from torch import nn

from qkv.cost import Input
from qkv.cost.memory import saved_bytes
from qkv.cost.meta_run import ModuleCall
from qkv.profile.plan import activations
from qkv.profile.plan.activations import count_activations
from tests.profile.plan.small import DIM, HIDDEN, TOKENS, target


def call(attention="softmax", **changes):
    found = target(attention, **changes)
    return ModuleCall(found.module, (Input.parse("int[3,n]"),))


def test_a_layer_saves_by_hand():
    """Float32, batch 3, 7 tokens: sums over one block of what each operation keeps, in values per token."""
    found = count_activations(call(layers=1), {"n": 7}, "float32")
    inputs, statistics = 2 * DIM, 2 * 2  # of the two norms
    normed, queries_keys_values, attended = DIM, 3 * DIM, 2 * DIM  # outputs by head, and joined
    after_norm, hidden = DIM, 2 * HIDDEN  # before and after GELU
    per_token = inputs + statistics + normed + queries_keys_values + attended + after_norm + hidden
    log_sums = 3 * 3 * 7  # batch, heads, tokens: of the softmax
    rope = 2 * 2 * 7  # cosine and sine of a pair of channels, for queries and keys
    assert found.saved - found.rest == 4 * (3 * 7 * per_token + log_sums + rope)
    assert found.block_inputs == 4 * 3 * 7 * DIM
    assert found.outputs == 3 * 7 * TOKENS


@pytest.mark.parametrize("attention", ["softmax", "linear", "taylor", "delta+forget+write", "linear+forget,softmax"])
def test_all_layers_save_what_one_run_counts(attention):
    asked = call(attention, layers=4)
    assert count_activations(asked, {"n": 130}, "float32").saved == saved_bytes(asked, {"n": 130})


@pytest.mark.parametrize("attention", ["linear", "delta+write", "linear,softmax"])
def test_long_sequences_are_extrapolated_exactly(attention, monkeypatch):
    monkeypatch.setattr(activations, "SHORT", 256)
    asked = call(attention, layers=4)
    runs = []
    monkeypatch.setattr(
        activations,
        "saved_for_backward",
        lambda *given, real=activations.saved_for_backward: runs.append(given[1]) or real(*given),
    )
    found = count_activations(asked, {"n": 2051}, "float32")
    assert found.saved == saved_bytes(asked, {"n": 2051})
    assert max(sizes["n"] for sizes in runs) == 3 + 4 * 256


def test_what_no_polynomial_gives_is_counted_at_full_length(monkeypatch):
    """A window of 700: its blocks begin beyond the first of the short lengths."""
    monkeypatch.setattr(activations, "SHORT", 256)
    asked = call("softmax(window=700)", layers=2)
    assert count_activations(asked, {"n": 4000}, "float32").saved == saved_bytes(asked, {"n": 4000})


def test_recomputation_keeps_inputs_and_one_block():
    found = count_activations(call(layers=6), {"n": 7}, "float32")
    one = count_activations(call(layers=1), {"n": 7}, "float32")
    assert found.recomputed == found.rest + found.block_inputs + one.saved - one.rest - one.block_inputs
    assert (found.block_inputs, found.rest) == (6 * one.block_inputs, one.rest)


def test_blocks_that_need_each_other_are_counted_together():
    class Widening(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 7)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return x

    asked = ModuleCall(Widening(), (Input.parse("float[2,3]"),))
    found = count_activations(asked, {}, "float32")
    assert found.saved == found.recomputed == 4 * 2 * (3 + 5 + 7)


def test_products_are_cast_and_weights_copied():
    """Under autocast the input of each product is kept in bfloat16, and norms keep theirs in float32."""
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))
    found = count_activations(ModuleCall(model, (Input.parse("float[2,6]"),)), {}, "bfloat16")
    assert found.saved == 2 * (4 * (6 + 2) + 2 * (6 + 10 + 10))
    assert found.weight_copies == found.rest_copies == 2 * (60 + 10 + 60 + 6)


def test_gates_run_in_float32_and_projections_share_one_copy():
    """More than without a gate: its input in float32, its rates, and the sums that fade."""
    plain = count_activations(call("linear", layers=1), {"n": 640}, "bfloat16")
    gated = count_activations(call("linear+forget", layers=1), {"n": 640}, "bfloat16")
    assert gated.saved - plain.saved >= 4 * 3 * 640 * DIM
    normed = 2 * 3 * 640 * DIM
    unshared = count_activations(ModuleCall(Unshared(), (Input.parse("float[3,640,6]"),)), {}, "bfloat16")
    assert unshared.saved == 3 * normed


class Unshared(nn.Module):
    """Three products of one input, each of which autocast casts again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        self.three = nn.ModuleDict({name: nn.Linear(6, 6, bias=False) for name in "qkv"})

    def forward(self, x):
        return torch.stack([layer(x) for layer in self.three.values()])
