"""Gates: each against its formula, and multi-head layers with gates, whole, in steps, padded and packed."""

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

from qkv.attention import Additive, Delta, Elu, Linear, Softmax, Taylor
from qkv.cost import Span
from qkv.layers import (
    ChannelGate,
    ForgetGate,
    Gate,
    Gates,
    Heads,
    MultiHead,
    OutputGate,
    ProjectionConvolution,
    ShortConvolution,
    WriteGate,
    pack_documents,
)
from qkv.positions import Alibi, Rope

DIM = 14
SIZES = {"one": Heads(3, key_dim=4, value_dim=5), "grouped": Heads(6, key_heads=2, key_dim=4, value_dim=5)}


def layer_of(kind, parts, shape="one", positions=None, gate_heads=None):
    """Build a multi-head layer with the parts whose initials are given: forget, channel, write, output, convolution."""
    sizes = SIZES[shape]
    count, key_heads, key_dim, value_dim = sizes.resolve(DIM)
    heads = gate_heads or count
    forget = ChannelGate(DIM, heads, key_dim, rank=3) if "c" in parts else ForgetGate(DIM, heads)
    return MultiHead(
        DIM,
        sizes,
        kind,
        positions,
        convolution=ProjectionConvolution(count * 4 + key_heads * 9, 3) if "v" in parts else None,
        output_norm=nn.RMSNorm(value_dim),
        gates=Gates(
            forget=forget if {"f", "c"} & set(parts) else None,
            write=WriteGate(DIM, heads, largest=2.0) if "w" in parts else None,
            output=OutputGate(DIM, count, value_dim) if "o" in parts else None,
        ),
    )


LAYERS = {
    "linear": lambda: layer_of(Linear(chunk=3), "fo"),
    "linear, channels": lambda: layer_of(Linear(chunk=3), "cov"),
    "linear, grouped": lambda: layer_of(Linear(chunk=3), "fv", "grouped"),
    "elu, grouped": lambda: layer_of(Elu(chunk=3), "f", "grouped", gate_heads=2),
    "elu": lambda: layer_of(Elu(chunk=3), "fo"),
    "taylor": lambda: layer_of(Taylor(chunk=3), "fv", positions=Rope()),
    "softmax": lambda: layer_of(Softmax(), "fov", positions=Rope()),
    "softmax, grouped": lambda: layer_of(Softmax(), "f", "grouped", gate_heads=2),
    "softmax, alibi": lambda: layer_of(Softmax(), "f", positions=Alibi(3)),
    "softmax, window": lambda: layer_of(Softmax(window=4), "fo"),
    "softmax, output only": lambda: layer_of(Softmax(), "o"),
    "delta": lambda: layer_of(Delta(chunk=3), "fwov"),
    "delta, rope": lambda: layer_of(Delta(chunk=3), "fw", positions=Rope()),
    "delta, channels": lambda: layer_of(Delta(chunk=3), "cw"),
    "delta, grouped": lambda: layer_of(Delta(chunk=3), "w", "grouped"),
    "delta, grouped, rates of the keys": lambda: layer_of(Delta(chunk=3), "fwv", "grouped", gate_heads=2),
    "delta, alibi": lambda: layer_of(Delta(chunk=3), "w", positions=Alibi(3)),
}
EACH = pytest.mark.parametrize("name", LAYERS)


def near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_forget_gate_equals_its_formula():
    gate, x = ForgetGate(7, 3).double(), torch.randn(2, 5, 7).double()
    rates = gate(x)
    assert rates.shape == (2, 3, 5)
    for b in range(2):
        for h in range(3):
            for t in range(5):
                pre = x[b, t] @ gate.rate.weight[h] + gate.rate.bias[h]
                near(rates[b, h, t], gate.log_factor[h].exp() * torch.log(1 + pre.exp()))


def test_channel_gate_equals_its_formula():
    gate, x = ChannelGate(7, 3, 5, rank=2).double(), torch.randn(2, 4, 7).double()
    rates = gate(x)
    assert rates.shape == (2, 3, 4, 5)
    pre = x @ gate.down.weight.T @ gate.up.weight.T + gate.up.bias
    for h in range(3):
        near(rates[:, h], torch.log(1 + torch.exp(-pre[..., 5 * h : 5 * h + 5])) / 16)


@pytest.mark.parametrize("largest", [1.0, 2.0, 1.5])
def test_write_gate_equals_its_formula(largest):
    gate, x = WriteGate(7, 3, largest=largest).double(), torch.randn(2, 5, 7).double()
    near(gate(x), (largest / (1 + torch.exp(-x @ gate.strength.weight.T))).transpose(1, 2))


def test_output_gate_equals_its_formula():
    gate, x = OutputGate(7, 3, 5).double(), torch.randn(2, 4, 7).double()
    pre = (x @ gate.factor.weight.T).view(2, 4, 3, 5)
    near(gate(x), (pre / (1 + torch.exp(-pre))).permute(0, 2, 1, 3))


def test_initial_values_are_those_of_the_papers():
    """exp(a) uniform in 0..16, softplus(b) log-uniform in 0.001..0.1: means 8 and log 0.01."""
    gate = ForgetGate(64, 4000)
    factors, steps = gate.log_factor.detach().exp(), nn.functional.softplus(gate.rate.bias.detach().double())
    assert 0 < float(factors.min()) < 0.1
    assert 15.9 < float(factors.max()) < 16.001
    assert float(factors.mean()) == pytest.approx(8, rel=0.05)
    assert 0.00099 < float(steps.min()) < 0.0011
    assert 0.09 < float(steps.max()) < 0.1001
    assert float(steps.log().mean()) == pytest.approx(torch.tensor(0.01).log().item(), rel=0.03)
    # a channel forgets 4 % at a token, not half: log(2) / 16
    rates = ChannelGate(64, 4, 8)(0.1 * torch.randn(2, 50, 64)).detach()
    assert float(rates.mean()) == pytest.approx(0.0433, rel=0.1)
    assert torch.equal(WriteGate(64, 4)(torch.zeros(1, 1, 64)).detach(), torch.full((1, 4, 1), 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_compute_in_float32_under_autocast(dtype):
    """The projections of gates keep their precision: no product in half precision runs."""
    x = torch.randn(2, 5, 7)
    for gate in (ForgetGate(7, 3), ChannelGate(7, 3, 4), WriteGate(7, 3), OutputGate(7, 3, 4)):
        expected = gate(x)
        with torch.autocast("cpu", dtype):
            found = gate(x)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


@EACH
def test_equals_the_parts_by_hand(name):
    """q, k, v, rates and strengths by plain products, then the definition, the norm, the gate and the output."""
    layer, x = LAYERS[name]().double(), torch.randn(2, 11, DIM).double()
    q, k, v = (nn.functional.linear(x, one.weight, one.bias) for one in (layer.query, layer.key, layer.value))
    if layer.projection_convolution is not None:
        joined, taps = torch.cat((q, k, v), -1), layer.projection_convolution.mix.taps
        mixed = nn.functional.conv1d(joined.transpose(1, 2), taps, padding=2, groups=taps.shape[0])[..., :11]
        q, k, v = nn.functional.silu(mixed.transpose(1, 2)).split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)
    q, k, v = (y.unflatten(-1, (-1, dim)).transpose(1, 2) for y, dim in ((q, 4), (k, 4), (v, 5)))
    options = {}
    if isinstance(layer.positions, Rope):
        q, k = (layer.positions.rotate(y, torch.arange(11)) for y in (q, k))
    elif layer.positions is not None and layer.attention.kind == "softmax":
        options["bias"] = layer.positions.bias(q, torch.arange(11), torch.arange(11))
    elif layer.positions is not None:
        options["decay"] = layer.positions.decay(q)
    gates = layer.gates
    options |= {} if gates.forget is None else {"decay": gates.forget(x)}
    options |= {} if gates.write is None else {"beta": gates.write(x)}
    weights = layer.attention.weights(q, k, causal=True, **options)
    out = layer.output_norm(weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1))
    out = out if gates.output is None else out * gates.output(x)
    near(layer(x, causal=True), layer.output(out.transpose(1, 2).flatten(2)))


@EACH
@pytest.mark.parametrize("side", ["none", "left", "right", "anywhere"])
def test_steps_and_pieces_equal_the_whole(name, side):
    layer, x = LAYERS[name]().double(), torch.randn(2, 11, DIM).double()
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, {"left": slice(0, 4), "right": slice(8, 11), "anywhere": slice(3, 5), "none": slice(0)}[side]] = False
    expected = layer(x, causal=True, mask=mask)
    for cuts in ([0, 1, 2, 7, 11], [0, 11], range(12)):
        state, parts = layer.start(2), []
        for start, end in pairwise(cuts):
            out, state = layer.step(x[:, start:end], state, mask=mask[:, start:end])
            parts.append(out)
        assert state.length == 11
        near(torch.cat(parts, 1), expected)


@pytest.mark.parametrize("name", [name for name in LAYERS if "alibi" not in name])
@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_nothing(name, left):
    """A padded row equals the row without its padding, which may hold anything."""
    layer, x = LAYERS[name]().double(), torch.randn(2, 11, DIM).double()
    hidden, real = (slice(0, 4), slice(4, 11)) if left else (slice(7, 11), slice(0, 7))
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, hidden] = False
    x[1, hidden] = 1e3
    near(layer(x, causal=True, mask=mask)[1, real], layer(x[1:, real], causal=True)[0])


@EACH
def test_a_selected_state_continues_in_the_new_order(name):
    layer, rows = LAYERS[name]().double(), torch.tensor([1, 1, 0])
    x = torch.randn(2, 6, DIM).double()
    _, state = layer.step(x[:, :4], layer.start(2))
    out, _ = layer.step(x[rows, 4:], state.select(rows))
    near(out, layer(x[rows], causal=True)[:, 4:])


def outputs_and_gradients(layer, x, run):
    """Return the outputs of `run`, then the gradients of the rows and of every parameter."""
    x = x.clone().requires_grad_()
    out = run(x)
    slopes = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return out, *torch.autograd.grad((out * slopes).sum(), (x, *layer.parameters()))


@EACH
@pytest.mark.parametrize("lengths", [[11, 1, 7, 19], [2, 5, 1, 4, 7, 3, 3, 13]])
def test_packed_documents_equal_each_document_alone(name, lengths):
    torch.manual_seed(0)
    layer, x = LAYERS[name]().double(), torch.randn(2, 19, DIM).double()
    starts = torch.tensor([position == 0 for length in lengths for position in range(length)]).view(2, 19)
    packing = pack_documents(starts)

    def alone(x):
        parts = [layer(document[None], causal=True)[0] for document in x.flatten(0, 1).split(lengths)]
        return torch.cat(parts).view_as(x)

    found = outputs_and_gradients(layer, x, lambda x: layer(x, causal=True, packing=packing))
    for actual, expected in zip(found, outputs_and_gradients(layer, x, alone), strict=True):
        bound = 1e-12 * max(float(expected.detach().abs().max()), 1)
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


def test_kinds_with_a_state_take_starts_instead_of_a_call_per_document():
    """Whole rows with a gate on the state; a softmax sees only its document, so it runs on each."""
    packing = pack_documents(torch.arange(38).view(2, 19) % 5 == 0)
    calls = {"delta": 1, "linear": 1, "softmax": len(packing.groups)}
    for name, expected in calls.items():
        layer, seen = LAYERS[name](), []
        layer.attention.register_forward_hook(lambda *given, seen=seen: seen.append(given[1][0].shape))
        layer(torch.randn(2, 19, DIM), causal=True, packing=packing)
        assert len(seen) == expected


@EACH
def test_gradients_reach_every_parameter(name):
    layer = LAYERS[name]()
    layer(torch.randn(2, 11, DIM), causal=True).square().sum().backward()
    silent = {n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-7}
    # the bias of the keys shifts all scores of a softmax alike; unit keys forget the length of a key
    assert silent <= {"key.bias"}


@EACH
def test_bytes_of_the_state_are_those_of_the_cost(name):
    layer = LAYERS[name]()
    _, state = layer.step(torch.randn(2, 11, DIM), layer.start(2))
    assert state.bytes == sum(layer.cost(Span(2, 11, causal=True)).state.values())


def test_delta_without_a_write_gate_writes_with_strength_1():
    layer, x = layer_of(Delta(), "f").double(), torch.randn(2, 11, DIM).double()
    plain = layer(x, causal=True)

    class One(Gate):
        gives = "beta"

        def forward(self, x):
            return x.new_ones(x.shape[0], self.heads, x.shape[1])

        def cost(self, span):
            raise NotImplementedError

    layer.gates.write = One(DIM, 3)
    near(layer(x, causal=True), plain)


def test_nothing_hidden_reaches_a_gate_of_the_state():
    """NaN in a hidden token, and so in its rate and strength, changes no visible output."""
    layer, x = layer_of(Delta(chunk=3), "fwov").double(), torch.randn(1, 9, DIM).double()
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[0, 3:5] = False
    expected = layer(x, causal=True, mask=mask)
    x[0, 3:5] = torch.nan
    near(layer(x, causal=True, mask=mask)[mask], expected[mask])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: layer_of(Linear(), "w"),
            "attention kind 'linear' does not accept WriteGate; leave it out, or use the kind delta",
        ),
        (
            lambda: layer_of(Softmax(), "c"),
            "attention kind 'softmax' does not accept ChannelGate; use ForgetGate, or the kinds linear and delta",
        ),
        (
            lambda: layer_of(Additive(4), "f"),
            "attention kind 'additive' does not accept ForgetGate; use a kind with gates per token, such as linear, "
            "taylor, delta or softmax",
        ),
        (
            lambda: layer_of(Delta(), "f", "grouped", gate_heads=3),
            "ForgetGate has heads=3, but its MultiHead has heads=6 or 2",
        ),
        (
            lambda: MultiHead(DIM, SIZES["grouped"], Delta(), gates=Gates(output=OutputGate(DIM, 2, 5))),
            "OutputGate has heads=2, but its MultiHead has heads=6",
        ),
        (
            lambda: MultiHead(DIM, 7, Linear(), gates=Gates(forget=ForgetGate(DIM + 1, 7))),
            f"ForgetGate has dim={DIM + 1}, but its MultiHead has dim={DIM}",
        ),
        (
            lambda: MultiHead(DIM, 7, Linear(), gates=Gates(forget=ChannelGate(DIM, 7, 3))),
            "ChannelGate has key_dim=3, but its MultiHead has key_dim=2",
        ),
        (
            lambda: MultiHead(DIM, 7, Linear(), gates=Gates(output=OutputGate(DIM, 7, 3))),
            "OutputGate has value_dim=3, but its MultiHead has value_dim=2",
        ),
        (
            lambda: layer_of(Taylor(), "f", positions=Alibi(3)),
            "positions 'alibi' fade the past by distance, ForgetGate by token, and attention kind 'taylor' takes one "
            "of them; use the gate with positions 'rope' or without positions",
        ),
        (
            lambda: layer_of(Linear(), "c", positions=Rope()),
            "positions 'rope' rotate pairs of channels, and ChannelGate fades each channel at its own rate, so that "
            "weights would depend on absolute positions; use ForgetGate, or the gate without positions",
        ),
        (
            lambda: MultiHead(DIM, 7, Linear(), convolution=ProjectionConvolution(41)),
            "convolution has channels=41, but queries, keys and values have 42 together",
        ),
        (lambda: ChannelGate(7, 3, 4, rank=0), "rank must be at least 1, got 0"),
        (lambda: WriteGate(7, 3, largest=2.5), "largest must be above 0 and at most 2, got 2.5"),
        (lambda: WriteGate(7, 3, largest=float("nan")), "largest must be above 0 and at most 2, got nan"),
        (lambda: ForgetGate(7, 0), "heads must be at least 1, got 0"),
        (lambda: ProjectionConvolution(0), "channels must be at least 1, got 0"),
    ],
)
def test_bad_input_that_does_not_fit_is_refused(build, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gates(forget=WriteGate(7, 3)), "forget must be a ForgetGate or ChannelGate, got WriteGate"),
        (lambda: Gates(write=nn.Linear(7, 3)), "write must be a WriteGate, got Linear"),
        (
            lambda: MultiHead(7, 1, Linear(), gates=ForgetGate(7, 1)),
            "gates must be Gates(forget=..., write=..., output=...), got ForgetGate",
        ),
        (lambda: ForgetGate(7, 3.0), "heads must be an integer, got 3.0"),
        (lambda: WriteGate(7, 3, largest="2"), "largest must be a number, got '2'"),
    ],
)
def test_bad_input_that_is_no_gate_is_refused(build, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        build()


def test_bad_input_of_cross_attention_with_gates():
    gated, mixed = layer_of(Softmax(), "o"), MultiHead(DIM, 7, Softmax(), convolution=ProjectionConvolution(42, 3))
    for call in (lambda: gated.project_context(torch.zeros(1, 2, DIM)), lambda: gated.cross_attend(None, None)):
        with pytest.raises(ValueError, match="gates belong to the tokens of one sequence, but cross-attention has two"):
            call()
    with pytest.raises(ValueError, match="a convolution of width 3 mixes neighbors of one sequence"):
        mixed.project_context(torch.zeros(1, 2, DIM))


def test_gates_of_the_state_need_causal():
    with pytest.raises(ValueError, match="decay needs causal=True"):
        layer_of(Linear(), "f")(torch.zeros(1, 2, DIM))


@pytest.mark.parametrize("causal", [True, False])
def test_convolution_after_the_projections_is_that_of_all_channels(causal):
    after, plain = ProjectionConvolution(6, 3).double(), ShortConvolution(6, 3).double()
    plain.load_state_dict(after.mix.state_dict())
    x, mask = torch.randn(2, 9, 6).double(), torch.rand(2, 9) > 0.3
    mixed = plain(x, causal=causal, mask=mask)
    near(after(x, causal=causal, mask=mask), mixed / (1 + torch.exp(-mixed)))
    assert after.width == 3


def test_half_precision_projections_stay_so_after_their_convolution():
    after, x = ProjectionConvolution(6, 3), torch.randn(2, 9, 6).half()
    assert after(x, causal=True).dtype == torch.float16
    out, state = after.step(x, after.start(2))
    assert (out.dtype, state.dtype) == (torch.float16, torch.float32)
    assert torch.equal(out, after(x, causal=True))


class WideNorm(torch.nn.RMSNorm):
    """A norm that computes in float32, under autocast too."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


@pytest.mark.parametrize("name", ["linear", "delta", "softmax"])
def test_autocast_is_near_float32(name):
    layer, x = LAYERS[name](), torch.randn(2, 11, DIM)
    layer.output_norm = WideNorm(5)
    expected = layer(x, causal=True)
    with torch.autocast("cpu", torch.float16):
        found, (stepped, _) = layer(x, causal=True), layer.step(x, layer.start(2))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(stepped, found, rtol=0, atol=1e-2)
