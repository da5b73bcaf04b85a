"""The GPU kernels against the float64 definition: on a GPU, and interpreted on the CPU without one."""

import subprocess
import sys
from copy import copy
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from qkv.attention import Case, Elu, Linear, RecurrentState, Taylor
from qkv.attention.contract import identities
from qkv.attention.internal.validation import Modifiers
from qkv.cost import count_multiplications

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"  # triton's interpreter does that
)
from triton.runtime.interpreter import InterpreterBuilder

from qkv.attention.triton import configs, dispatch, op, plan
from qkv.attention.triton.decode import feature_map_step
from qkv.attention.triton.kinds import kernel_kind
from qkv.attention.triton.launch import with_contiguous_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = {"taylor": Taylor, "linear": Linear, "elu": Elu}
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""Relative RMS; half precision alone rounds by 2^-12 or 2^-9, and the gradient of a decay is one sum over all pairs."""
every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Setting:
    causal: bool = True
    masked: bool = False
    decays: bool = False
    chunk: int = 16
    dtype: torch.dtype = torch.float32


def case_of(setting, **sizes):
    """37 tokens by default: two whole segments of 16 and a piece."""
    usual = {
        "queries": 37 if setting.causal else 29,
        "keys": 37,
        "max_score": 3.0,
        "batch": 1,
        "heads": 2,
        "key_heads": 1,
    }
    extra = "decay" if setting.decays else None
    return Case(causal=setting.causal, masked=setting.masked, modifier=extra, dtype=setting.dtype, **{**usual, **sizes})


def moved(x):
    """The same inputs where the kernels run."""
    names = ("q", "k", "v", "mask", "bias", "decay")
    there = {n: y.detach().to(DEVICE) for n in names if (y := getattr(x, n)) is not None}
    return replace(x, **{n: y if y.dtype == torch.bool else y.requires_grad_() for n, y in there.items()})


def rms(actual, expected, least=1e-30):
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    assert actual.shape == expected.shape
    return float((actual - expected).norm() / expected.norm().clamp(min=least))


def errors(mechanism, case, form=identities.forward_output):
    """Relative RMS of the outputs and of every gradient, against the definition in float64 of the same inputs."""
    x = moved(identities.draw_inputs(case, mechanism))
    wide = identities.to_float64(x)
    law = copy(mechanism)
    law.backend = "reference"
    results = []
    for chosen, inputs, run in ((mechanism, x, form), (law, wide, identities.definition_output)):
        out = run(chosen, inputs)
        arriving = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        arriving = arriving.to(case.dtype).to(out)
        results.append([out, *torch.autograd.grad(out, inputs.differentiable, arriving)])
    # the gradient of a lone key is zero, but its rounding error is not
    least = max(1e-30, *(float(expected.detach().norm()) / 3 for expected in results[1]))
    return [rms(actual, expected, least) for actual, expected in zip(*results, strict=True)]


SETTINGS = [
    # where all keys fit into one segment there is no state to read: less can go wrong, so it is tested less often
    pytest.param(Setting(causal, masked, decays, chunk), marks=[pytest.mark.slow] if chunk == 64 else [])
    for causal, masked, decays, chunk in product((True, False), (False, True), (False, True), (16, 64))
    if causal or not decays
]


@every_kind
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_outputs_and_gradients(kind, setting):
    mechanism, case = KINDS[kind](chunk=setting.chunk, backend="triton"), case_of(setting)
    # the gradient of a decay is a sum that cancels: the definition in float32 loses digits there, too
    by_definition = errors(KINDS[kind](backend="reference"), case, identities.definition_output)
    bounds = [max(BOUNDS[torch.float32], 4 * error) for error in by_definition]
    assert [e <= bound for e, bound in zip(errors(mechanism, case), bounds, strict=True)] == [True] * len(bounds)


@pytest.fixture
def fresh_plans():
    """Forget cached plans: a test changes their configurations."""
    plan.plan_of.cache_clear()
    yield
    plan.plan_of.cache_clear()


@every_kind
@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize(("programs", "chunk", "length", "each"), [(1, 16, 37, 3), (2, 16, 37, 2), (1, 48, 75, 2)])
def test_splits_of_several_segments(kind, programs, chunk, length, each, monkeypatch):
    """One program takes all segments, or two take two and one, and the state before the second is added.

    A segment of 48 is three blocks, and its last one of 27 tokens two: a reversed accumulation starts within it.
    """
    monkeypatch.setattr(configs, "DEFAULT", replace(configs.DEFAULT, min_programs=programs))
    case = case_of(Setting(masked=True), queries=length, keys=length)
    sizes = length, 1, case.key_dim, case.value_dim
    planned = plan.Plan(kernel_kind(kind), True, 1.0, chunk, *sizes, torch.float32, True)
    assert planned.partition(length, 1, has_decay=False).segments_per_split == each
    assert identities.largest_error(errors(KINDS[kind](chunk=chunk, backend="triton"), case)) <= BOUNDS[torch.float32]


@every_kind
@pytest.mark.parametrize(
    "sizes",
    [
        {"key_dim": 1, "value_dim": 1},
        {"key_dim": 20, "value_dim": 19},
        {"key_dim": 3, "value_dim": 131},
        {"heads": 5, "key_heads": 1, "batch": 1},
        {"heads": 3, "key_heads": 3, "batch": 1},
    ],
    ids=str,
)
def test_widths_and_groups(kind, sizes):
    mechanism = KINDS[kind](chunk=16, backend="triton", scale=0.3)
    assert identities.largest_error(errors(mechanism, case_of(Setting(masked=True), **sizes))) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("setting", [Setting(masked=True, decays=True), Setting(causal=False)], ids=str)
def test_wide_keys_have_many_tiles(setting):
    """741 features: of 24 tiles that are read, 21 are of products alone, and normalizers are loaded one tile ahead."""
    case = case_of(setting, key_dim=37, value_dim=4)
    assert (
        identities.largest_error(errors(Taylor(chunk=16, backend="triton", scale=0.2), case)) <= BOUNDS[torch.float32]
    )


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_half_precision(kind, dtype):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    case = case_of(Setting(dtype=dtype), key_dim=16, value_dim=16, heads=2, key_heads=2)
    assert identities.largest_error(errors(mechanism, case)) <= BOUNDS[dtype]


@every_kind
@pytest.mark.parametrize("length", [0, 1, 16, 17])
@pytest.mark.parametrize("causal", [True, False])
def test_short_sequences(kind, length, causal):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    case = case_of(Setting(causal), queries=length, keys=length, heads=2, key_heads=1)
    assert identities.largest_error(errors(mechanism, case)) <= BOUNDS[torch.float32]


@every_kind
@pytest.mark.parametrize(("decays", "key_dim"), [(False, 5), (True, 5), (False, 20)])
def test_a_split_sequence_carries_its_state_and_gradients(kind, decays, key_dim):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    case = case_of(Setting(masked=True, decays=decays), batch=2, heads=4, key_heads=2, key_dim=key_dim)

    def two_steps(chosen, x):
        start = {"dtype": x.q.dtype, "device": x.q.device, "key_heads": 4 if decays else 2}
        state, outputs = chosen.start(2, 4, key_dim, 7, **start), []
        for piece in (slice(0, 21), slice(21, 37)):
            parts = (y[:, :, piece] for y in (x.q, x.k, x.v))
            out, state = chosen.step(*parts, state, mask=x.mask[:, piece], decay=x.decay)
            outputs.append(out)
        return torch.cat(outputs, 2)

    assert identities.largest_error(errors(mechanism, case, two_steps)) <= BOUNDS[torch.float32]


@every_kind
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("dims", [(5, 7), (24, 64)], ids=["one program", "several, if taylor"])
def test_one_token_at_a_time_in_place(kind, decays, dims):
    """The decode kernel: masked keys, groups of 3 queries (with decay each has keys of its own), the state in place."""
    mechanism = KINDS[kind](backend="triton")
    sizes = {"queries": 7, "keys": 7, "batch": 2, "heads": 6, "key_heads": 2, "key_dim": dims[0], "value_dim": dims[1]}
    case = case_of(Setting(masked=True, decays=decays), **sizes)
    x = moved(identities.draw_inputs(case, mechanism))
    expected = mechanism(x.q, x.k, x.v, **x.modifiers).detach()
    with torch.inference_mode():
        start = {"device": x.q.device, "key_heads": 6 if decays else 2}
        state, outputs = mechanism.start(2, 6, *dims, **start), []
        place = state.sums[0].data_ptr()
        for t in range(7):
            now = slice(t, t + 1)
            parts = (y[:, :, now] for y in (x.q, x.k, x.v))
            out, after = mechanism.step(*parts, state, mask=x.mask[:, now], decay=x.decay)
            outputs.append(out)
            state = after
    assert rms(torch.cat(outputs, 2), expected) <= BOUNDS[torch.float32]
    assert state.sums[0].data_ptr() == place
    assert state.length == 7


@pytest.mark.gpu
@pytest.mark.parametrize("key_dim", [16, 64])
def test_a_step_can_be_captured_and_replayed(key_dim):
    """In a CUDA graph: nothing in it waits for the GPU, and each replay takes one more token."""
    mechanism = Taylor(backend="triton")
    with torch.inference_mode():
        tokens = torch.randn(5, 3, 2, 4, 1, key_dim, device=DEVICE)
        token = tokens[0].clone()
        state, replayed = mechanism.start(2, 4, key_dim, key_dim, device=DEVICE), []
        expected, after = [], mechanism.start(2, 4, key_dim, key_dim, device=DEVICE)
        for now in tokens:
            out, after = mechanism.step(*now, after)
            expected.append(out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, _ = mechanism.step(*token, state)
        for now in tokens:
            token.copy_(now)
            graph.replay()
            replayed.append(out.clone())
    assert torch.equal(torch.stack(replayed), torch.stack(expected))


def test_a_state_continued_in_place_is_spent():
    mechanism = Taylor(backend="triton")
    token = torch.randn(1, 2, 1, 5, device=DEVICE)
    with torch.inference_mode():
        state = mechanism.start(1, 2, 5, 5, device=DEVICE)
        branch = state.select(torch.tensor([0], device=DEVICE))
        mechanism.step(token, token, token, state)
        with pytest.raises(ValueError, match="already continued"):
            mechanism.step(token, token, token, state)
        mechanism.step(token, token, token, branch)


@every_kind
def test_both_layouts_and_views_are_read_by_their_strides(kind):
    """(batch, time, heads, dim) as a view, one axis of it with gaps, and elements that are not contiguous."""
    mechanism = KINDS[kind](chunk=16, backend="triton")
    q, k = torch.randn(2, 2, 37, 3, 5, device=DEVICE).unbind(0)
    v = torch.randn(2, 37, 3, 2 * 7, device=DEVICE)[..., ::2]
    views = [x.transpose(1, 2) for x in (q, k, v)]
    expected = mechanism(*(x.contiguous() for x in views), causal=True)
    assert torch.equal(mechanism(*views, causal=True), expected)


@every_kind
def test_hidden_keys_have_no_influence_and_a_query_that_sees_nothing_gets_zeros(kind, monkeypatch):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    case = case_of(Setting(), queries=19, keys=19)
    draw = identities.draw_inputs
    monkeypatch.setattr(identities, "draw_inputs", lambda *drawn: moved(draw(*drawn)))
    assert identities.hidden_influence(mechanism, case) == 0
    assert identities.empty_row_violations(mechanism, case) == 0
    assert identities.future_influence(mechanism, case) == 0


@every_kind
@pytest.mark.parametrize("backend", ["reference", "chunked", "triton"])
def test_fully_faded_weights_leave_finite_outputs(kind, backend, monkeypatch):
    draw = identities.draw_inputs
    monkeypatch.setattr(identities, "draw_inputs", lambda *drawn: moved(draw(*drawn)))
    assert (
        identities.faded_nonfinite(KINDS[kind](backend=backend), case_of(Setting(decays=True), queries=13, keys=13))
        == 0
    )


@pytest.mark.parametrize("kind", ["taylor", "elu", "linear"])
def test_a_nan_that_is_seen_is_passed_on(kind):
    """On a GPU the maximum of NaN and a number is the number, unless NaN is propagated explicitly."""
    q, k, v = (torch.randn(1, 1, 37, dim, device=DEVICE, requires_grad=True) for dim in (5, 5, 7))
    with torch.no_grad():
        k[0, 0, 3, 2] = torch.nan
    mechanism = KINDS[kind](chunk=16, backend="triton")
    out = mechanism(q, k, v, causal=True)
    assert out[:, :, 3:].isnan().all()
    assert not out[:, :, :3].isnan().any()
    with torch.inference_mode():
        state = mechanism.start(1, 1, 5, 7, device=DEVICE)
        stepped, _ = mechanism.step(*(x.detach()[:, :, 3:4] for x in (q, k, v)), state)
    assert stepped.isnan().all()


@every_kind
def test_a_state_with_gaps_is_not_updated_in_place(kind):
    """In place only where the sums are contiguous: every second sequence of a state must leave the others alone."""
    mechanism = KINDS[kind](backend="triton")
    with torch.inference_mode():
        q, k, v = (torch.randn(4, 2, 1, dim, device=DEVICE) for dim in (5, 5, 7))
        _, whole = mechanism.step(q, k, v, mechanism.start(4, 2, 5, 7, device=DEVICE))
        kept = [x.clone() for x in whole.sums]
        some = RecurrentState.from_sums([x[::2] for x in whole.sums], whole.length)
        out, _ = mechanism.step(q[::2], k[::2], v[::2], some)
        assert all(torch.equal(a, b) for a, b in zip(whole.sums, kept, strict=True))
        expected, _ = mechanism.step(q, k, v, whole)
        assert rms(out, expected[::2]) <= BOUNDS[torch.float32]
        norms = whole.sums[1][::2] if mechanism.normalizes else None
        with pytest.raises(ValueError, match="must be contiguous"):
            feature_map_step(q[::2], k[::2], v[::2], None, None, whole.sums[0][::2], norms, kind, 1.0)


@every_kind
def test_overlapping_or_transposed_inputs(kind):
    """Windows over one row, and (batch, heads, dim, time) transposed: gradients, fake strides, both compilers."""
    mechanism = KINDS[kind](chunk=16, backend="triton")
    windows = torch.randn(1, 2, 23, device=DEVICE).unfold(2, 16, 1)
    across = torch.randn(1, 2, 7, 8, device=DEVICE).transpose(2, 3)
    for inputs in ((windows, windows, across), (across, across, windows)):
        given = [x.detach().requires_grad_() for x in inputs]
        plain = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in inputs]
        arriving = torch.randn(1, 2, 8, inputs[2].shape[3], device=DEVICE)
        found, expected = (torch.autograd.grad(mechanism(*x, causal=True), x, arriving) for x in (given, plain))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        compiled = torch.compile(mechanism, backend="aot_eager", fullgraph=True)
        again = torch.autograd.grad(compiled(*given, causal=True), given, arriving)
        assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
        operator = op.feature_map_attention
        options = (None, None, None, None, kind, 0.5, True, 16, True)
        torch.library.opcheck(operator, (*given, *options))
        out, inverse, sums, norms, _, _, gate = operator(*inputs, *options)
        saved = (arriving, None, None, *inputs, None, None, out, inverse, sums, norms, gate, *options[4:])
        torch.library.opcheck(op.feature_map_attention_backward, saved)


def test_double_backward_raises():
    q, k, v = (torch.randn(1, 1, 5, 4, device=DEVICE, requires_grad=True) for _ in range(3))
    out = Taylor(backend="triton")(q, k, v, causal=True)
    for loss in (out.square().sum(), out.sum()):  # the gradient that comes in has a history, or is a constant
        with pytest.raises(RuntimeError, match=r"second derivatives .*backend=\"reference\""):
            torch.autograd.grad(loss, q, create_graph=True, retain_graph=True)


def test_tokens_too_far_apart_for_32_bits_are_copied():
    near, far = (torch.empty(1, 1, 2, 4).as_strided((1, 1, 2, 4), (0, 0, stride, 1)) for stride in (4, 0))
    assert with_contiguous_rows(near) is near
    assert with_contiguous_rows(far) is far
    with torch.device("meta"):
        spread = torch.empty(2**25 + 4).as_strided((1, 1, 2, 4), (0, 0, 2**25, 1))
        assert with_contiguous_rows(spread).stride(2) == 4


@every_kind
def test_the_same_inputs_give_the_same_bits(kind):
    mechanism = KINDS[kind](chunk=16, backend="triton")
    x = moved(identities.draw_inputs(case_of(Setting(decays=True), heads=2, key_heads=2), mechanism))
    runs = []
    for _ in range(2 if DEVICE == "cpu" else 20):
        out = mechanism(x.q, x.k, x.v, **x.modifiers)
        runs.append([out, *torch.autograd.grad(out.square().sum(), x.differentiable)])
    assert all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other, strict=True))


@every_kind
@pytest.mark.parametrize("causal", [True, False])
def test_operators_pass_the_checks_of_torch(kind, causal):
    q, k, v = (torch.randn(1, h, 19, d, device=DEVICE, requires_grad=True) for h, d in ((2, 5), (1, 5), (1, 7)))
    mask = torch.rand(1, 19, device=DEVICE) > 0.3
    torch.library.opcheck(op.feature_map_attention, (q, k, v, mask, None, None, None, kind, 0.5, causal, 16, True))
    state = KINDS[kind]().start(1, 2, 5, 7, key_heads=1, device=DEVICE).sums
    token = [x.detach()[:, :, :1] for x in (q, k, v)]
    arguments = (*token, None, None, state[0], state[1] if len(state) > 1 else None, kind, 0.5)
    torch.library.opcheck(feature_map_step, arguments)


def test_compiled_in_one_graph():
    mechanism = Taylor(chunk=16, backend="triton")
    q, k, v = (torch.randn(1, 2, 19, 5, device=DEVICE, requires_grad=True) for _ in range(3))
    results = []
    for call in (mechanism, torch.compile(mechanism, backend="aot_eager", fullgraph=True)):
        out = call(q, k, v, causal=True)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@every_kind
@pytest.mark.parametrize("setting", [Setting(), Setting(chunk=64), Setting(causal=False)], ids=str)
def test_cost_is_what_was_counted(kind, setting):
    mechanism, case = KINDS[kind](chunk=setting.chunk, backend="triton"), case_of(setting)
    x = moved(identities.draw_inputs(case, mechanism))
    with torch.no_grad(), count_multiplications() as counted:
        mechanism(x.q, x.k, x.v, **x.modifiers)
    assert counted.total == sum(mechanism.cost(case.shape).executed.values())


@pytest.mark.skipif(DEVICE == "cuda", reason="only the interpreter shows what it multiplies")
@pytest.mark.parametrize(
    ("mechanism", "length", "setting"),
    [
        (Taylor(backend="triton"), 130, Setting()),
        (Taylor(backend="triton"), 300, Setting()),
        (Taylor(chunk=16, backend="triton"), 37, Setting(decays=True)),
        (Taylor(chunk=16, backend="triton"), 37, Setting(causal=False)),
        (Taylor(chunk=48, backend="triton"), 75, Setting(dtype=torch.float16)),
        (Linear(backend="triton"), 200, Setting()),
        (Elu(backend="triton"), 65, Setting()),
    ],
    ids=str,
)
def test_every_product_is_counted(mechanism, length, setting, monkeypatch):
    """The formulas count every product that reaches the tensor cores, forward and backward."""
    done = []
    product_of = InterpreterBuilder.create_dot

    def counted_product(self, a, b, *rest):
        done.append(a.data.shape[0] * a.data.shape[1] * b.data.shape[1])
        return product_of(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", counted_product)
    x = moved(identities.draw_inputs(case_of(setting, queries=length, keys=length, heads=4, key_heads=2), mechanism))
    with count_multiplications(strict=False) as counted:
        out = mechanism(x.q, x.k, x.v, **x.modifiers)
        assert counted.by_operation["qkv.feature_map_attention"] == sum(done)
        done.clear()
        torch.autograd.grad(out, x.differentiable, torch.ones_like(out))
        assert counted.by_operation["qkv.feature_map_attention_backward"] == sum(done)


def test_multiplications_by_hand():
    """Taylor, 37 tokens in segments of 16, 21 features in a tile of 32, dims 5 and 7 in tiles of 16, 2 heads of 1."""
    cost = Taylor(chunk=16, backend="triton").cost(case_of(Setting(), batch=1, heads=2, key_heads=1).shape)
    blocks = 3 * 16 * 2  # padded query rows of both heads
    assert cost.executed == {
        "scores": blocks * 16 * 16,
        "values": blocks * 16 * 16,
        "write": 3 * 16 * 32 * (16 + 2 * 16),
        "read": blocks * 32 * (16 + 2 * 16),
    }


@pytest.mark.parametrize(
    ("mechanism", "sizes", "words"),
    [
        (Taylor(order=4, backend="triton"), {}, "order 2, not 4"),
        (Taylor(backend="triton"), {"key_dim": 65}, "key_dim up to 64, got 65"),
        (Linear(backend="triton"), {"key_dim": 129}, "key_dim up to 128, got 129"),
        (Elu(backend="triton"), {"value_dim": 257}, "value_dim up to 256, got 257"),
        (Elu(backend="triton"), {"dtype": torch.float64}, "got torch.float64"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_limits_are_named(mechanism, sizes, words):
    x = identities.draw_inputs(replace(case_of(Setting()), **sizes), mechanism)
    with pytest.raises(ValueError, match=words):
        mechanism(*(y.to(DEVICE) for y in (x.q, x.k, x.v)), causal=True)


def test_a_cpu_tensor_raises(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", False)
    q = torch.randn(1, 1, 3, 5)
    with pytest.raises(ValueError, match="run on CUDA, and q is on cpu"):
        Taylor(backend="triton")(q, q, q)


def test_without_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "TRITON_INSTALLED", False)
    q = torch.randn(1, 1, 3, 5)
    with pytest.raises(ValueError, match="triton is not installed"):
        Taylor(backend="triton")(q, q, q)


def test_the_modifiers_of_a_call_are_not_dropped():
    """Decay expands shared heads before the kernels, mask and all."""
    mechanism = Taylor(chunk=16, backend="triton")
    x = moved(identities.draw_inputs(case_of(Setting(masked=True, decays=True)), mechanism))
    out = dispatch.forward(mechanism, x.q, x.k, x.v, Modifiers(True, x.mask, None, x.decay))
    assert torch.equal(out, mechanism(x.q, x.k, x.v, **x.modifiers))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_kernel_compiles_without_a_gpu(dtype):
    """To machine code of compute capability 9.0, as they are launched."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention.triton.compile_triton", dtype],
        check=False,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("\n") >= 30


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_auto_is_the_kernels_on_cuda(kind):
    q, k, v = (torch.randn(1, 2, 700, d, device="cuda") for d in (5, 5, 7))
    found, by_kernels = (KINDS[kind](backend=backend)(q, k, v, causal=True) for backend in ("auto", "triton"))
    assert torch.equal(found, by_kernels)


@pytest.mark.gpu
def test_auto_warns_once_about_its_fallback_and_is_right():
    q, k, v = (torch.randn(1, 2, 300, d, device="cuda") for d in (65, 65, 7))
    with pytest.warns(UserWarning, match="key_dim up to 64, got 65"):
        found = KINDS["taylor"]()(q, k, v, causal=True)
    again = KINDS["taylor"]()(q, k, v, causal=True)  # a second warning would be an error here
    expected = KINDS["taylor"](backend="reference")(q.double(), k.double(), v.double(), causal=True)
    assert torch.equal(found, again)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("key_dim", [18, 20, 24, 32, 64])
def test_two_tiles_of_wide_keys_have_a_bias(key_dim):
    """A single last tile is compiled to a wrong address in shared memory; see `compile_triton.mixed_up_halves`."""
    planned = plan.Plan(kernel_kind("taylor"), False, 1.0, 512, 1024, 1, key_dim, key_dim, torch.bfloat16, True)
    for config in (planned.configs.output, planned.configs.grad_q):
        tiles = planned.tile_sizes(planned.read_tile(config), config)
        assert tiles.FEATURE_TILES - tiles.PURE_TILES >= 2
        assert key_dim * (key_dim + 1) // 2 >= tiles.PURE_TILES * tiles.BLOCK_F


@pytest.mark.gpu
@pytest.mark.parametrize("key_dim", [20, 32])
@pytest.mark.parametrize("causal", [True, False])
def test_heads_of_32_in_bfloat16(key_dim, causal):
    """Several segments of 512 with the block sizes of long sequences, forward and backward."""
    case = case_of(
        Setting(causal, dtype=torch.bfloat16),
        queries=1024,
        keys=1024,
        heads=2,
        key_heads=2,
        key_dim=key_dim,
        value_dim=key_dim,
    )
    assert identities.largest_error(errors(Taylor(backend="triton"), case)) <= BOUNDS[torch.bfloat16]
