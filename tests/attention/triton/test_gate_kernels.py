"""The kernels with a gate per token and with starts of documents, against the float64 definition."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from qkv.attention import Case, Elu, Linear, Taylor
from qkv.attention.contract import identities
from qkv.cost import count_multiplications

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"  # triton's interpreter does that
)
from triton.runtime.interpreter import InterpreterBuilder

from qkv.attention.triton import configs, op, plan
from qkv.attention.triton.decode import feature_map_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = {"taylor": Taylor, "linear": Linear, "elu": Elu}
BOUND = 2e-6
"""Relative RMS in float32."""
every_kind = pytest.mark.parametrize("kind", KINDS)


def case_of(**changes):
    """37 tokens: two whole segments of 16 and a piece; a gate for each of two query heads that share a key head."""
    usual = {"batch": 1, "heads": 2, "key_heads": 1, "queries": 37, "keys": 37, "max_score": 3.0}
    return Case(**{**usual, "modifier": "gate", "dtype": torch.float32, **changes})


def draw(case, mechanism, starts=()):
    """Draw inputs; `starts` are (row, token). Hidden rates are NaN."""
    x = identities.draw_inputs(case, mechanism)
    changed = {}
    if starts:
        changed["starts"] = torch.zeros(case.batch, case.keys, dtype=torch.bool)
        for row, token in starts:
            changed["starts"][row, token] = True
    if case.masked and x.gated:
        changed["decay"] = x.decay.detach().masked_fill(~x.mask[:, None], torch.nan)
    return move(replace(x, **changed))


def move(x):
    """Return the same inputs where the kernels run, as leaves of autograd."""
    names = ("q", "k", "v", "mask", "decay", "starts")
    there = {n: y.detach().to(DEVICE) for n in names if (y := getattr(x, n)) is not None}
    return replace(x, **{n: y if y.dtype == torch.bool else y.requires_grad_() for n, y in there.items()})


def results(mechanism, x, run=identities.forward_output):
    """Return the outputs and all gradients."""
    out = run(mechanism, x)
    arriving = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(x.q.dtype).to(out)
    return [out.detach(), *torch.autograd.grad(out, x.differentiable, arriving)]


def rms(found, expected):
    """Return the relative RMS of each result; one that is far smaller than the others counts by their size."""
    least = max(1e-30, *(float(y.norm()) / 3 for y in expected))
    assert [y.shape for y in found] == [y.shape for y in expected]
    pairs = zip(found, expected, strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm().clamp(min=least)) for a, b in pairs]


def errors(mechanism, x, run=identities.forward_output):
    """Return the errors of the kernels, and those of the definition in the same precision."""
    law = copy(mechanism)
    law.backend = "reference"
    exact = results(law, identities.to_float64(x), identities.definition_output)
    return rms(results(mechanism, x, run), exact), rms(results(law, x, identities.definition_output), exact)


def excess(mechanism, x, run=identities.forward_output):
    """Return the largest error over its bound: twice that of the definition."""
    found, by_definition = errors(mechanism, x, run)
    return max(error / max(BOUND, 2 * bound) for error, bound in zip(found, by_definition, strict=True))


@every_kind
@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, ()),
        ({"masked": True, "key_head_gate": True, "heads": 4, "key_heads": 2}, ((0, 0), (0, 16), (0, 21), (0, 22))),
        ({"max_rate": 50.0}, ((0, 5),)),
        pytest.param({"modifier": "decay", "masked": True}, ((0, 7), (0, 32)), marks=pytest.mark.slow),
        pytest.param({"modifier": None, "masked": True}, ((0, 16),), marks=pytest.mark.slow),
    ],
    ids=["gate", "hidden, starts, key heads", "strong", "decay by distance, starts", "starts"],
)
def test_outputs_and_gradients(kind, changes, starts):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    assert excess(mechanism, draw(case_of(**changes), mechanism, starts)) <= 1


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("taylor", {"key_dim": 16, "value_dim": 3}),
        pytest.param("taylor", {"key_dim": 20, "value_dim": 19}, marks=pytest.mark.slow),
        ("linear", {"key_dim": 20, "value_dim": 131}),
        ("elu", {"heads": 5, "key_head_gate": True}),
    ],
    ids=str,
)
def test_widths_and_groups(kind, sizes):
    """With 16 channels taylor has tiles of products alone, whose part of the gradient follows from their degree."""
    mechanism = KINDS[kind](chunk=16, backend="triton", scale=0.3)
    assert excess(mechanism, draw(case_of(masked=True, **sizes), mechanism, ((0, 19),))) <= 1


@pytest.mark.parametrize("kind", ["taylor", "linear"])
@pytest.mark.parametrize("length", [0, 1, 16, 17])
def test_short_sequences(kind, length):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(queries=length, keys=length), mechanism)
    assert excess(mechanism, x) <= 1


SPLITS = [(2, 16, 53), *(pytest.param(*way, marks=pytest.mark.slow) for way in ((1, 16, 37), (1, 48, 75)))]
"""Programs, tokens per segment, tokens."""


@pytest.fixture
def fresh_plans():
    """Forget cached plans: a test changes their configurations."""
    plan.plan_of.cache_clear()
    yield
    plan.plan_of.cache_clear()


@every_kind
@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize(("programs", "chunk", "length"), SPLITS)
def test_splits_of_several_segments(kind, programs, chunk, length, monkeypatch):
    """One program walks over all segments, or two over two each: states fade inside a split and between splits."""
    monkeypatch.setattr(configs, "DEFAULT", replace(configs.DEFAULT, min_programs=programs))
    mechanism = KINDS[kind](chunk=chunk, backend="triton")
    x = draw(case_of(queries=length, keys=length, key_head_gate=True), mechanism)
    assert excess(mechanism, x) <= 1


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("kind", ["linear", "elu"])
def test_the_gradient_without_a_sum_over_pairs(kind, monkeypatch):
    """As in bfloat16, which the interpreter cannot multiply: from features and their gradients."""
    monkeypatch.setattr(plan.Plan, "sums_pairs", False)
    mechanism = KINDS[kind](chunk=32, backend="triton")
    assert excess(mechanism, draw(case_of(masked=True, key_head_gate=True), mechanism, ((0, 19),))) <= 1


@every_kind
@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("programs", [pytest.param(1, marks=pytest.mark.slow), 384])
def test_a_split_sequence_carries_its_state_and_gradients(kind, programs, monkeypatch):
    """The gradient of a rate includes what it makes forget of a state that came in."""
    monkeypatch.setattr(configs, "DEFAULT", replace(configs.DEFAULT, min_programs=programs))
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(batch=2, masked=True, max_rate=0.1), mechanism, ((1, 24),))
    assert excess(mechanism, x, identities.step_output((20, 17))) <= 1


@every_kind
@pytest.mark.parametrize("key_head_gate", [False, True])
def test_one_token_at_a_time_in_place(kind, key_head_gate):
    mechanism = KINDS[kind](backend="triton")
    sizes = {"batch": 2, "heads": 6, "key_heads": 2, "queries": 7, "keys": 7}
    x = draw(case_of(masked=True, key_head_gate=key_head_gate, **sizes), mechanism, ((0, 4), (1, 0)))
    expected = identities.definition_output(KINDS[kind](backend="reference"), identities.to_float64(x)).detach()
    with torch.inference_mode():
        found = identities.step_output((1,) * 7)(mechanism, x)
    assert rms([found], [expected])[0] <= BOUND


def test_a_state_per_query_head_takes_a_gate_per_key_head():
    mechanism = Linear(chunk=16, backend="triton")
    x = draw(case_of(heads=6, key_heads=2, key_head_gate=True, queries=19, keys=19), mechanism)
    expected = mechanism(x.q, x.k, x.v, **x.modifiers).detach()
    now, last = slice(0, 18), slice(18, 19)
    with torch.inference_mode():
        state = mechanism.start(1, 6, 5, 7, key_heads=6, device=DEVICE)
        outputs = []
        for piece in (now, last):
            parts = (y[:, :, piece] for y in (x.q, x.k, x.v))
            out, state = mechanism.step(*parts, state, decay=x.decay[:, :, piece])
            outputs.append(out)
    assert rms([torch.cat(outputs, 2)], [expected])[0] <= BOUND


@every_kind
def test_a_rate_of_zero_changes_no_bit_and_a_constant_one_is_a_decay(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(modifier=None, key_heads=2), mechanism)
    zero = torch.zeros(1, 2, 37, device=DEVICE)
    plain, gated = results(mechanism, x), results(mechanism, replace(x, decay=zero.requires_grad_()))
    assert all(torch.equal(a, b) for a, b in zip(plain, gated[:4], strict=True))
    assert gated[4].norm() > 0
    rate = torch.tensor([0.1, 0.3], device=DEVICE)
    by_distance = results(mechanism, replace(x, decay=rate.clone().requires_grad_()))
    by_token = results(mechanism, replace(x, decay=rate[None, :, None].expand(1, 2, 37).clone().requires_grad_()))
    by_token[4] = by_token[4].sum((0, 2))
    assert max(rms(by_token, by_distance)) <= BOUND


@every_kind
def test_documents_are_rows_of_their_own(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(), mechanism, ((0, 5), (0, 16)))
    parts = [replace(x.tokens(piece), starts=None) for piece in (slice(0, 5), slice(5, 16), slice(16, 37))]
    alone = torch.cat([identities.forward_output(mechanism, part) for part in parts], 2)
    assert rms([identities.forward_output(mechanism, x).detach()], [alone.detach()])[0] <= BOUND


@every_kind
def test_a_closed_gate_is_a_start_and_has_no_gradient(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(), mechanism)
    rates = x.decay.detach().clone()
    rates[:, :, 20] = torch.inf
    starts = torch.arange(37, device=DEVICE)[None] == 20
    closed = results(mechanism, replace(x, decay=rates.requires_grad_()))
    started = results(mechanism, replace(x, starts=starts))
    assert all(torch.equal(a, b) for a, b in zip(closed, started, strict=True))
    assert closed[4][:, :, 20].eq(0).all()
    assert closed[4][:, :, 19].ne(0).any()


@every_kind
def test_a_row_alone_has_the_bits_of_the_batch(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(batch=2, masked=True, queries=19, keys=19), mechanism, ((1, 9),))
    whole = results(mechanism, x)
    out = mechanism(*(y[1:2] for y in (x.q, x.k, x.v)), **x.rows(torch.tensor([1], device=DEVICE)).modifiers)
    assert torch.equal(out, whole[0][1:2])
    again = results(mechanism, x)
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


@every_kind
def test_hidden_tokens_have_no_influence(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(masked=True), mechanism)
    hidden = ~x.mask[:, None, :, None]
    found, expected = (results(mechanism, x.hide(hidden, content)) for content in (torch.nan, 0.0))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert found[4].masked_select(~x.mask[:, None]).eq(0).all()


@every_kind
def test_half_precision(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = draw(case_of(dtype=torch.float16, key_heads=2), mechanism)
    x = replace(x, decay=x.decay.detach().float().requires_grad_())
    law = KINDS[kind](backend="reference")
    exact = results(law, identities.to_float64(x), identities.definition_output)
    found = results(mechanism, x)
    assert found[4].dtype == torch.float32
    assert max(rms(found, exact)) <= 1e-3


def test_a_gate_may_be_a_strided_view():
    """A projection gives (batch, time, heads)."""
    mechanism = Linear(chunk=16, backend="triton")
    x = draw(case_of(key_heads=2), mechanism)
    view = x.decay.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    pairs = zip(results(mechanism, replace(x, decay=view)), results(mechanism, x), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_limits_are_named():
    mechanism = Linear(backend="triton")
    x = draw(case_of(key_heads=2), mechanism)
    with pytest.raises(ValueError, match="decay needs causal=True"):
        mechanism(x.q, x.k, x.v, decay=x.decay)
    with pytest.raises(ValueError, match="a gate per token, not per channel"):
        mechanism(x.q, x.k, x.v, causal=True, decay=x.decay[..., None].expand(1, 2, 37, 5))


@every_kind
def test_operators_pass_the_checks_of_torch(kind):
    q, k, v = (torch.randn(1, h, 19, d, device=DEVICE, requires_grad=True) for h, d in ((2, 5), (1, 5), (1, 7)))
    rates = torch.rand(1, 1, 19, device=DEVICE, requires_grad=True)
    torch.library.opcheck(op.feature_map_attention, (q, k, v, None, rates, None, None, kind, 0.5, True, 16, True))
    state = KINDS[kind]().start(1, 2, 5, 7, key_heads=1, device=DEVICE).sums
    token = [x.detach()[:, :, :1] for x in (q, k, v)]
    sums = state[0], state[1] if len(state) > 1 else None
    torch.library.opcheck(feature_map_step, (*token, None, rates.detach()[:, :, :1], *sums, kind, 0.5))


@pytest.mark.skipif(DEVICE == "cuda", reason="only the interpreter shows what it multiplies")
@pytest.mark.parametrize("kind", ["taylor", "linear"])
def test_every_product_is_counted(kind, monkeypatch):
    """Of the features of taylor, only those of tiles that are not pure are computed once more for the gate."""
    done = []
    product_of = InterpreterBuilder.create_dot

    def counted_product(self, a, b, *rest):
        done.append(a.data.shape[0] * a.data.shape[1] * b.data.shape[1])
        return product_of(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", counted_product)
    mechanism = KINDS[kind](chunk=16, backend="triton")
    case = case_of(key_dim=16, heads=4, key_heads=2, key_head_gate=True)
    x = draw(case, mechanism)
    with count_multiplications(strict=False) as counted:
        out = mechanism(x.q, x.k, x.v, **x.modifiers)
        assert counted.by_operation["qkv.feature_map_attention"] == sum(done)
        assert sum(mechanism.cost(case.shape).executed.values()) == sum(done)
        done.clear()
        torch.autograd.grad(out, x.differentiable, torch.ones_like(out))
        assert counted.by_operation["qkv.feature_map_attention_backward"] == sum(done)
