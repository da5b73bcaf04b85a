import re
import warnings

import pytest
import torch
from torch import nn

from qkv.attention import Additive, Elu, Linear, Softmax, Taylor
from qkv.layers import Heads, MultiHead, ShortConvolution
from qkv.positions import T5, Alibi, Rope, Shaw

COMBINATIONS = {
    "softmax": lambda: MultiHead(12, 3, Softmax()),
    "softmax rope": lambda: MultiHead(12, 3, Softmax(), Rope()),
    "softmax alibi": lambda: MultiHead(12, 3, Softmax(), Alibi(3)),
    "softmax t5": lambda: MultiHead(12, 3, Softmax(), T5(3, bidirectional=False)),
    "softmax shaw": lambda: MultiHead(12, 3, Softmax(), Shaw(4, distance=2)),
    "softmax window alibi": lambda: MultiHead(12, 3, Softmax(window=4), Alibi(3)),
    "softmax window shaw": lambda: MultiHead(12, 3, Softmax(window=4), Shaw(4, distance=3)),
    "additive t5": lambda: MultiHead(12, 3, Additive(4), T5(3, bidirectional=False)),
    "taylor rope grouped": lambda: MultiHead(12, Heads(6, key_heads=2, key_dim=4), Taylor(chunk=3), Rope()),
    "taylor alibi grouped": lambda: MultiHead(12, Heads(6, key_heads=2), Taylor(chunk=3), Alibi(6)),
    "elu alibi": lambda: MultiHead(12, 3, Elu(chunk=3), Alibi(3)),
    "linear with everything": lambda: MultiHead(
        12, 3, Linear(chunk=3), Rope(), convolution=ShortConvolution(12), output_norm=nn.RMSNorm(4)
    ),
}


def copied(heads, reference, dim):
    """Copy the weights of torch's module into ours."""
    with torch.no_grad():
        for n, linear in enumerate((heads.query, heads.key, heads.value)):
            linear.weight.copy_(reference.in_proj_weight[n * dim : (n + 1) * dim])
            linear.bias.copy_(reference.in_proj_bias[n * dim : (n + 1) * dim])
        heads.output.load_state_dict(reference.out_proj.state_dict())
    return heads


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("causal", [False, True])
def test_parity_with_torch(dtype, bound, causal):
    reference = nn.MultiheadAttention(15, 3, batch_first=True, dtype=dtype)
    nn.init.normal_(reference.in_proj_bias)
    heads = copied(MultiHead(15, 3, Softmax()).to(dtype), reference, 15)
    x = torch.randn(2, 7, 15, dtype=dtype)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    ahead = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, _ = reference(x, x, x, key_padding_mask=~mask, attn_mask=ahead, need_weights=False)
    torch.testing.assert_close(heads(x, causal=causal, mask=mask), expected, rtol=0, atol=bound)


def test_cross_attention_parity_with_torch():
    reference = nn.MultiheadAttention(15, 3, batch_first=True, dtype=torch.float64)
    heads = copied(MultiHead(15, 3, Softmax()).double(), reference, 15)
    x, other = torch.randn(2, 5, 15, dtype=torch.float64), torch.randn(2, 7, 15, dtype=torch.float64)
    mask = torch.rand(2, 7) > 0.3
    expected, _ = reference(x, other, other, key_padding_mask=~mask, need_weights=False)
    torch.testing.assert_close(heads.cross_attend(x, heads.project_context(other, mask)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_steps_equal_the_whole(name, masked):
    heads = COMBINATIONS[name]().double()
    x = torch.randn(2, 11, 12, dtype=torch.float64)
    mask = torch.rand(2, 11) > 0.3 if masked else None
    expected = heads(x, causal=True, mask=mask)
    state, parts = heads.start(2), []
    for start, end in ((0, 1), (1, 2), (2, 7), (7, 11)):
        out, state = heads.step(x[:, start:end], state, mask=None if mask is None else mask[:, start:end])
        parts.append(out)
    assert state.length == 11
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_selected_state_continues_in_the_new_order(name):
    heads, rows = COMBINATIONS[name]().double(), torch.tensor([1, 1, 0])
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    _, state = heads.step(x[:, :4], heads.start(2))
    out, _ = heads.step(x[rows, 4:], state.select(rows))
    torch.testing.assert_close(out, heads(x[rows], causal=True)[:, 4:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_parameter_gets_a_gradient(name):
    heads = COMBINATIONS[name]()
    heads(torch.randn(2, 11, 12), causal=True).square().sum().backward()
    # the bias of the keys shifts all scores of a softmax alike, so it cannot learn there
    silent = {n for n, p in heads.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-6}
    assert silent <= {"key.bias"}


def test_grouped_heads_share_keys():
    heads = MultiHead(12, Heads(6, key_heads=2), Softmax())
    assert heads.key.weight.shape == heads.value.weight.shape == (4, 12)
    assert heads.start(1).attention.keys.shape == (1, 2, 0, 2)


def test_head_count_does_not_change_parameter_count():
    """Worked by hand: 768 wide, one projection has 589,824 weights, the three 1,769,472, whatever the heads."""
    for count in (1, 12):
        heads = MultiHead(768, count, Softmax(), bias=False)
        assert heads.query.weight.numel() == 589_824
        assert sum(p.numel() for p in (heads.query.weight, heads.key.weight, heads.value.weight)) == 1_769_472


def test_bad_input():
    with pytest.raises(ValueError, match="heads=5 must divide dim=12"):
        MultiHead(12, 5, Softmax())
    with pytest.raises(ValueError, match="key_heads=4 must divide heads=6"):
        MultiHead(12, Heads(6, key_heads=4), Softmax())
    with pytest.raises(ValueError, match="positions 'rope' relate tokens of one sequence"):
        MultiHead(12, 3, Softmax(), Rope()).project_context(torch.zeros(1, 2, 12))
    plain, mixing = MultiHead(12, 3, Softmax()), MultiHead(12, 3, Softmax(), convolution=ShortConvolution(12, 3))
    with pytest.raises(ValueError, match="a convolution of width 3 mixes neighbors of one sequence"):
        mixing.project_context(torch.zeros(1, 2, 12))
    with pytest.raises(ValueError, match="a convolution of width 3 mixes neighbors of one sequence"):
        mixing.cross_attend(torch.zeros(1, 2, 12), plain.project_context(torch.zeros(1, 2, 12)))


def test_three_projections_share_one_autocast_cast():
    """Stopped before any product: some CPUs crash in half-precision products."""
    layer, seen = MultiHead(6, 2, Softmax()), []

    def stop(module, given):
        seen.append(given[0].dtype)
        raise InterruptedError

    layer.query.register_forward_pre_hook(stop)
    x = torch.randn(2, 5, 6)
    with pytest.raises(InterruptedError):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InterruptedError):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InterruptedError):
        layer(x.double())
    assert seen == [torch.float32, torch.bfloat16, torch.float64]


class Adapted(nn.Module):
    """A projection plus a low-rank adapter, without a `weight` attribute."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(heads):
    for name in ("query", "key", "value", "output"):
        setattr(heads, name, Adapted(getattr(heads, name)))
    return heads


def quantized(heads):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to move it to a package of its own
        return torch.ao.quantization.quantize_dynamic(heads.eval(), {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("make", [Softmax, lambda: Softmax(window=2), lambda: Additive(4), Taylor])
@pytest.mark.parametrize(
    ("change", "half", "near"),
    [
        (adapted, False, 1e-6),
        (adapted, True, 1e-2),
        (lambda heads: heads, True, 1e-2),
        (quantized, False, 0.1),  # to eight bits, by the range of what is given at once
    ],
)
def test_steps_with_wrapped_or_quantized_projections(make, change, half, near):
    heads, x = change(MultiHead(8, 2, make())), torch.randn(2, 5, 8)
    with torch.inference_mode(), torch.autocast("cpu", torch.float16, enabled=half):
        state, steps = heads.start(2), []
        for position in range(5):
            out, state = heads.step(x[:, position : position + 1], state)
            steps.append(out)
        torch.testing.assert_close(torch.cat(steps, 1), heads(x, causal=True), rtol=0, atol=near)


@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 13), (2, 3, 5, 4), (12,)])
@pytest.mark.parametrize("name", ["rope", "plain"])
def test_bad_input_names_the_argument_and_its_shape(name, shape):
    heads, x = MultiHead(12, 3, Softmax(), Rope() if name == "rope" else None), torch.randn(2, 5, 12)
    plain, wrong = MultiHead(12, 3, Softmax()), torch.randn(shape)
    calls = {
        "x": [
            lambda: heads(wrong),
            lambda: heads.step(wrong, heads.start(2)),
            lambda: plain.cross_attend(wrong, plain.project_context(x)),
        ],
        "context": [lambda: plain.project_context(wrong)],
    }
    for argument, tried in calls.items():
        for call in tried:
            message = f"{argument} must have shape (batch, time, dim) = (*, *, 12), got {shape}"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                call()


@pytest.mark.parametrize("name", ["softmax rope", "taylor rope grouped", "elu alibi", "linear with everything"])
def test_compiles_without_a_warning(name):
    heads, x = COMBINATIONS[name](), torch.randn(2, 7, 12)
    if hasattr(heads.attention, "chunk"):
        heads.attention.backend = "chunked"
    torch.compiler.reset()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        # torch's own, about any autograd.Function; Python hides it
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        found = torch.compile(heads, backend="eager")(x, causal=True)
        found.sum().backward()
    assert [str(warning.message) for warning in shown] == []
    torch.testing.assert_close(found, heads(x, causal=True))
