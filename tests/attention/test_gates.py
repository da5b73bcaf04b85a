"""Gates: a decay rate per token or channel, and the starts of documents."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.attention import Additive, Elu, Linear, Softmax, Taylor, attend, weights
from qkv.attention.contract import identities
from qkv.attention.contract.cases import Case, draw_inputs
from qkv.attention.internal import gate_channels
from qkv.attention.internal.chunk_decay import block_pairs
from qkv.attention.internal.validation import Modifiers
from qkv.attention.triton import dispatch

SIZES = {"queries": 23, "keys": 23}


def loop(q, k, v, weight, *, rates, mask, starts, divide):
    """Attend by plain loops over one batch row and head; rates (time, channels)."""
    out = []
    for i in range(len(q)):
        total, sums = 0.0, [0.0] * len(v[0])
        for j in range(i + 1):
            if not mask[j] or any(starts[j + 1 : i + 1]):
                continue
            faded = [sum(rates[t][c] for t in range(j + 1, i + 1) if mask[t]) for c in range(len(rates[0]))]
            w = weight(q[i], k[j], [math.exp(-x) for x in faded])
            total += w
            sums = [s + w * x for s, x in zip(sums, v[j], strict=True)]
        out.append([s / total for s in sums] if divide and total else sums)
    return torch.tensor(out, dtype=torch.float64)


def dot(q, k, factors):
    factors = factors * len(q) if len(factors) == 1 else factors
    return math.fsum(a * b * f for a, b, f in zip(q, k, factors, strict=True))


LAWS = {
    "linear": lambda q, k, f: dot(q, k, f) / len(q) ** 0.5,
    "softmax": lambda q, k, f: f[0] * math.exp(dot(q, k, [1.0]) / len(q) ** 0.5),
    "taylor": lambda q, k, f: f[0] * (1 + (x := dot(q, k, [1.0]) / len(q) ** 0.5) + x * x / 2),
    "elu": lambda q, k, f: dot(*([x + 1 if x > 0 else math.exp(x) for x in y] for y in (q, k)), f),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("kind", "modifier"),
    [("linear", "gate"), ("linear", "channel_gate"), ("elu", "gate"), ("taylor", "gate"), ("softmax", "gate")],
)
def test_equals_plain_loops(kind, modifier, masked):
    mechanism = {"linear": Linear(), "elu": Elu(), "taylor": Taylor(), "softmax": Softmax()}[kind]
    for key_head_gate in (False, True):
        case = Case(modifier=modifier, masked=masked, documents=True, key_head_gate=key_head_gate, **SIZES)
        x = draw_inputs(case, mechanism)
        heads = x.repeat_heads(case.heads)
        mask = torch.ones(2, 23, dtype=torch.bool) if x.mask is None else x.mask
        rates = heads.decay if modifier == "channel_gate" else heads.decay[..., None]
        expected = torch.stack(
            [
                torch.stack(
                    [
                        loop(
                            *(y[b, h].tolist() for y in (heads.q, heads.k, heads.v)),
                            LAWS[kind],
                            rates=rates[b, h].tolist(),
                            mask=mask[b].tolist(),
                            starts=x.starts[b].tolist(),
                            divide=kind != "linear",
                        )
                        for h in range(case.heads)
                    ]
                )
                for b in range(case.batch)
            ]
        )
        for out in (
            identities.definition_output(mechanism, x),
            identities.forward_output(mechanism, x),
            identities.step_output((5, 1, 17))(mechanism, x),
        ):
            assert identities.distance([out], [expected]) <= 1e-12


@pytest.mark.parametrize(
    ("mechanism", "modifier"),
    [
        (Linear(backend="chunked"), "gate"),
        (Linear(backend="chunked"), "channel_gate"),
        (Elu(backend="chunked"), "gate"),
        (Taylor(backend="chunked"), "gate"),
        (Softmax(), "gate"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_rates_of_50_cost_no_digits_in_float32(mechanism, modifier, sparse):
    """Large sums of rates once left few digits for the differences of neighbors."""
    squares = dict.fromkeys((identities.forward_output, identities.definition_output), 0.0)
    for seed in range(4):
        case = Case(modifier=modifier, batch=1, heads=2, key_heads=2, queries=205, keys=205, max_score=3.0, seed=seed)
        case = Case(**{**vars(case), "max_rate": 50.0, "dtype": torch.float32})
        x = draw_inputs(case, mechanism)
        if sparse:  # one token in ten forgets
            closed = torch.rand(205, generator=torch.Generator().manual_seed(seed)) < 0.9
            x.decay.data[:, :, closed] = 0
        truth = identities.definition_output(mechanism, identities.to_float64(x))
        for form in squares:
            squares[form] += float((form(mechanism, x) - truth).detach().square().sum())
    assert squares[identities.forward_output] ** 0.5 <= 2 * squares[identities.definition_output] ** 0.5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("key_head_gate", [False, True])
@pytest.mark.parametrize("documents", [False, True])
def test_softmax_by_channels_equals_the_definition(masked, key_head_gate, documents):
    keys = gate_channels.SHORTEST + 5
    sizes = {"batch": 2, "heads": 2, "key_heads": 1, "queries": keys, "keys": keys, "max_rate": 5.0}
    case = Case(modifier="gate", masked=masked, key_head_gate=key_head_gate, documents=documents, **sizes)
    mechanism = Softmax()
    assert identities.form_error(mechanism, case, identities.forward_output) <= 1e-12
    assert identities.multiplication_error(mechanism, case) == 0
    assert identities.hidden_influence(mechanism, case) == 0


class LargestTensor(TorchDispatchMode):
    """Largest number of elements of a result."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


@pytest.mark.parametrize(("mechanism", "modifier"), [(Taylor(chunk=16), "gate"), (Linear(chunk=16), "channel_gate")])
def test_memory_is_linear_in_the_length(mechanism, modifier):
    mechanism.backend, largest = "chunked", []
    for keys in (256, 512):
        case = Case(modifier=modifier, batch=1, heads=1, key_heads=1, queries=keys, keys=keys, documents=True)
        x = draw_inputs(case, mechanism)
        with LargestTensor() as seen:
            torch.autograd.grad(identities.forward_output(mechanism, x).sum(), x.differentiable)
        largest.append(seen.elements)
    assert largest[1] <= 2 * largest[0]


@pytest.mark.parametrize("time", [0, 1, 15, 16, 17, 64, 77])
def test_block_pairs_counts_the_blocks(time):
    assert block_pairs(time) == sum(min(16, time - first) * min(first + 16, time) for first in range(0, time, 16))


def test_an_infinite_rate_closes_the_gate_and_has_a_finite_gradient():
    x = draw_inputs(Case(modifier="gate"), Taylor())
    rates = x.decay.detach().clone()
    rates[:, :, 6] = torch.inf
    rates.requires_grad_()
    out = Taylor()(x.q, x.k, x.v, causal=True, decay=rates)
    alone = Taylor()(*(y[:, :, 6:] for y in (x.q, x.k, x.v)), causal=True, decay=x.decay[:, :, 6:])
    torch.testing.assert_close(out[:, :, 6:], alone, rtol=1e-12, atol=1e-12)
    assert torch.autograd.grad(out.sum(), rates)[0].isfinite().all()


@pytest.mark.parametrize("mechanism", [Linear(), Softmax()])
def test_gates_are_not_read_under_transforms(mechanism):
    x = draw_inputs(Case(modifier="gate", heads=3), mechanism)

    def loss(rates):
        return mechanism(x.q, x.k, x.v, causal=True, decay=rates).square().sum()

    found = torch.func.grad(loss)(x.decay.detach())
    torch.testing.assert_close(found, torch.autograd.grad(loss(x.decay), x.decay)[0], rtol=1e-9, atol=1e-9)


def test_kernels_refuse_gates_per_channel(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "TRITON_INSTALLED", True)
    mechanism = Linear(backend="triton")
    x = draw_inputs(Case(modifier="channel_gate", dtype=torch.float32), mechanism)
    reason = dispatch.unsupported_reason(mechanism, x.q, x.v, Modifiers(True, decay=x.decay))
    assert "a gate per token, not per channel" in reason
    with pytest.raises(ValueError, match=f"backend='triton' cannot take this call .*{reason}"):
        mechanism(x.q, x.k, x.v, causal=True, decay=x.decay)


def test_kernels_take_gates_per_token_and_starts(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "TRITON_INSTALLED", True)
    for mechanism in (Linear(), Elu(), Taylor()):
        x = draw_inputs(Case(modifier="gate", documents=True, dtype=torch.float32), mechanism)
        assert dispatch.unsupported_reason(mechanism, x.q, x.v, Modifiers(True, decay=x.decay, starts=x.starts)) is None


def test_a_cache_goes_on_without_a_gate():
    """Tokens without a gate have rate 0."""
    softmax = Softmax()
    x = draw_inputs(Case(modifier="gate", **SIZES), softmax)
    rates = x.decay.detach().clone()
    rates[:, :, 7:] = 0
    state = identities.start_state(softmax, x)
    first, state = identities.step_range(softmax, x, state, 0, 7)
    rest, state = softmax.step(*(y[:, :, 7:] for y in (x.q, x.k, x.v)), state)
    expected = softmax(x.q, x.k, x.v, causal=True, decay=rates)
    torch.testing.assert_close(torch.cat((first, rest), 2), expected, rtol=1e-12, atol=1e-12)


Q, K, V = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 7)
GATE = torch.ones(2, 6, 5)
NEGATIVE, UNKNOWN = GATE.clone(), GATE.clone()
NEGATIVE[1, 2, 3], UNKNOWN[1, 2, 3] = -0.5, float("nan")
SHOWN = torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("linear", {"decay": NEGATIVE}, "decay must be at least 0 at every visible .*-0.5 at batch 1, head 2, key 3"),
        ("linear", {"decay": UNKNOWN, "mask": SHOWN}, "decay must be at least 0 at every visible token, got nan"),
        ("linear", {"decay": -torch.ones(2, 3, 5, 4)}, "got -1 at batch 0, head 0, key 0, channel 0"),
        ("linear", {"decay": GATE[:, :2]}, r"\(batch, heads, keys\) = \(2, 6\|3, 5\) or .*got shape \(2, 2, 5\)"),
        ("linear", {"decay": GATE[:, :, :4]}, r"decay must be .*got shape \(2, 6, 4\)"),
        ("linear", {"decay": GATE[:1]}, r"decay must be .*got shape \(1, 6, 5\)"),
        ("linear", {"decay": GATE.long()}, "decay must be a floating-point tensor .*got shape .*int64"),
        ("linear", {"decay": GATE, "causal": False}, "decay needs causal=True"),
        ("linear", {"beta": GATE}, "'linear' cannot take a beta; use the kind delta"),
        ("taylor", {"decay": torch.ones(2, 6, 5, 4)}, "'taylor' cannot take a gate per channel; use a gate per token"),
        ("elu", {"decay": torch.ones(2, 6, 5, 4)}, "'elu' cannot take a gate per channel"),
        ("softmax", {"decay": torch.ones(2, 6, 5, 4)}, "'softmax' cannot take a gate per channel"),
        ("softmax", {"decay": torch.ones(6)}, "'softmax' cannot take a decay; use bias="),
        ("elu", {"decay": GATE, "bias": torch.zeros(1, 6, 5, 5)}, "'elu' cannot take a score bias"),
        ("softmax", {"starts": SHOWN, "causal": False}, "starts needs causal=True"),
        ("softmax", {"starts": SHOWN[:, :4]}, r"starts must be a bool .* = \(2, 5\).*got shape \(2, 4\)"),
        ("taylor", {"starts": SHOWN.long()}, "starts must be a bool tensor .*int64"),
        ("taylor", {"starts": [True]}, "starts must be a bool tensor .*got list"),
    ],
)
def test_bad_input_names_the_argument(kind, change, message):
    arguments = {"causal": True, **change}
    with pytest.raises(ValueError, match=message):
        attend(Q, K, V, kind=kind, **arguments)
    with pytest.raises(ValueError, match=message):
        weights(Q, K, kind=kind, **arguments)


def test_bad_input_additive_takes_no_gate():
    with pytest.raises(ValueError, match="'additive' cannot take a gate per token; use bias="):
        Additive(4)(Q, K, V, causal=True, decay=GATE)


def test_bad_input_gate_of_other_heads_than_the_state():
    linear, softmax = Linear(), Softmax()
    with pytest.raises(ValueError, match="started with key_heads=3; start it with key_heads=6"):
        linear.step(Q, K, V, linear.start(2, 6, 4, 7, key_heads=3), decay=GATE)
    _, cache = softmax.step(Q, K, V, softmax.start(2, 6, 4, 7, key_heads=3), decay=GATE)
    with pytest.raises(ValueError, match="decay has 3 heads, but that of the tokens before had 6"):
        softmax.step(Q, K, V, cache, decay=GATE[:, :3])
