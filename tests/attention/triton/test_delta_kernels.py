"""The kernels of the delta rule, interpreted on the CPU, against the float64 definition."""

from dataclasses import dataclass, replace

import pytest
import torch

from qkv.attention import Delta

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"  # triton's interpreter does that
    ),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA they take bfloat16: see benchmarks.delta_gpu"),
]

from qkv.attention.triton import delta_plan
from qkv.attention.triton.delta_decode import delta_step
from qkv.attention.triton.delta_op import delta_attention, delta_attention_backward
from qkv.attention.triton.delta_plan import DeltaOperands, plan_of_operands
from qkv.cost import Shape, count_multiplications


@dataclass(frozen=True)
class DeltaCase:
    tokens: int = 70
    heads: int = 2
    key_heads: int = 2
    gate_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    rate: float | None = 1.0
    beta: float | None = 1.0
    cosine: float = 0.0
    masked: bool = False
    starts: bool = False
    zero_keys: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "plain": DeltaCase(rate=None, beta=None),
    "gated": DeltaCase(tokens=130),
    "one token": DeltaCase(tokens=1),
    "whole chunks": DeltaCase(tokens=128),
    "odd sizes": DeltaCase(key_dim=24, value_dim=20),
    "wide values": DeltaCase(key_dim=16, value_dim=80),
    "mask": DeltaCase(masked=True),
    "starts": DeltaCase(starts=True),
    "mask and starts": DeltaCase(masked=True, starts=True, tokens=130),
    "shared keys": DeltaCase(heads=4, key_heads=2, gate_heads=4),
    "shared state": DeltaCase(heads=2, key_heads=1, gate_heads=1),
    "fast gates": DeltaCase(rate=50.0),
    "beta 2": DeltaCase(beta=2.0),
    "zero keys": DeltaCase(zero_keys=True),
    "like keys": DeltaCase(cosine=0.99, beta=2.0, rate=None),
    "largest": DeltaCase(tokens=67, heads=1, key_heads=1, gate_heads=1, key_dim=128, value_dim=256),
    "everything": DeltaCase(
        tokens=131, heads=4, key_heads=2, key_dim=5, value_dim=7, beta=2.0, masked=True, starts=True, zero_keys=True
    ),
}


def draw(case, seed=0):
    """q, k, v, the modifiers that have gradients, and those that have none."""
    generator = torch.Generator().manual_seed(seed)

    def normal(heads, dim):
        return torch.randn(2, heads, case.tokens, dim, generator=generator)

    def uniform(most):
        return torch.rand(2, case.gate_heads, case.tokens, generator=generator) * most

    q, v = normal(case.heads, case.key_dim), normal(case.key_heads, case.value_dim)
    k = normal(case.key_heads, case.key_dim) * (1 - case.cosine) ** 0.5
    k = k + torch.randn(2, case.key_heads, 1, case.key_dim, generator=generator) * case.cosine**0.5
    if case.zero_keys:
        k[:, :, ::3] = 0
    rates = {} if case.rate is None else {"decay": uniform(case.rate)}
    rates |= {} if case.beta is None else {"beta": uniform(case.beta)}
    flags = {}
    for name, chance in (("mask", case.masked * 0.7), ("starts", case.starts * 0.1)):
        if chance:
            flags[name] = torch.rand(2, case.tokens, generator=generator) < chance
    tensors = [x.to(case.dtype) for x in (q, k, v)]
    return tensors, rates, flags


def outputs_and_gradients(mechanism, tensors, rates, flags, dtype):
    tensors = [x.detach().to(dtype).requires_grad_() for x in tensors]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rates = {name: x.detach().to(wide).requires_grad_() for name, x in rates.items()}
    out = mechanism(*tensors, causal=True, **rates, **flags)
    generator = torch.Generator().manual_seed(1)
    arriving = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    return [out, *torch.autograd.grad(out, [*tensors, *rates.values()], arriving)]


def rms(actual, expected):
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-3))


def errors(case):
    drawn = draw(case)
    found = outputs_and_gradients(Delta(backend="triton"), *drawn, case.dtype)
    expected = outputs_and_gradients(Delta(backend="reference"), *drawn, torch.float64)
    return [rms(*pair) for pair in zip(found, expected, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name):
    assert max(errors(CASES[name])) <= 4e-6


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    case = CASES[name]
    assert max(errors(DeltaCase(**{**vars(case), "dtype": dtype}))) <= (3e-2 if case.cosine else 8e-3)


@pytest.mark.parametrize("name", ["gated", "shared state", "starts"])
def test_steps_continue_a_sequence(name):
    case = CASES[name]
    (q, k, v), rates, flags = draw(case)
    delta, heads = Delta(backend="triton"), max(case.key_heads, case.gate_heads)
    state = delta.start(2, case.heads, case.key_dim, case.value_dim, key_heads=heads, device="cpu")
    whole = delta(q, k, v, causal=True, **rates, **flags)
    pieces = []
    for piece in (slice(0, 30), slice(30, 31), slice(31, None)):
        now = {n: x[..., piece] for n, x in (rates | flags).items()}
        out, state = delta.step(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, **now)
        pieces.append(out)
    assert rms(torch.cat(pieces, 2), whole) <= 2e-6
    chunked = Delta(backend="chunked").double()
    start = chunked.start(2, case.heads, case.key_dim, case.value_dim, key_heads=heads, dtype=torch.float64)
    start = type(start)(start.kv_sum)
    wide = {n: x if x.dtype == torch.bool else x.double() for n, x in (rates | flags).items()}
    _, expected = chunked.step(q.double(), k.double(), v.double(), start, **wide)
    assert rms(state.kv_sum, expected.kv_sum) <= 2e-6


@pytest.mark.parametrize("name", ["plain", "everything", "shared keys", "shared state", "fast gates"])
def test_one_token_at_a_time_in_place(name):
    case = CASES[name]
    (q, k, v), rates, flags = draw(case)
    delta, heads, tokens = Delta(backend="triton"), max(case.key_heads, case.gate_heads), 6
    state = delta.start(2, case.heads, case.key_dim, case.value_dim, key_heads=heads, device="cpu")
    kept, pieces, memory = torch.empty(0), [], state.kv_sum.data_ptr()
    for t in range(tokens):
        now = {n: x[..., t : t + 1] for n, x in (rates | flags).items()}
        with torch.inference_mode():
            before, (out, state) = state, delta.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state, **now)
        pieces.append(out)
        with pytest.raises(ValueError, match="already continued in place"):
            delta.step(*(x[:, :, t : t + 1] for x in (q, k, v)), before, **now)
        if t == 2:
            kept = state.kv_sum.clone()
    assert state.kv_sum.data_ptr() == memory
    assert state.length == tokens
    assert not torch.equal(state.kv_sum, kept)
    wide = {n: (x if x.dtype == torch.bool else x.double())[..., :tokens] for n, x in (rates | flags).items()}
    q, k, v = (x[:, :, :tokens].double() for x in (q, k, v))
    chunked = Delta(backend="chunked")
    zeros = chunked.start(2, case.heads, *state.kv_sum.shape[2:], key_heads=heads, dtype=torch.float64, device="cpu")
    expected, last = chunked.step(q, k, v, zeros, **wide)
    assert rms(torch.cat(pieces, 2), expected) <= 1e-6
    assert rms(state.kv_sum, last.kv_sum) <= 1e-6


def test_steps_in_place_are_counted():
    (q, k, v), _, _ = draw(DeltaCase(tokens=1))
    delta = Delta(backend="triton")
    state = delta.start(2, 2, 16, 16, device="cpu")
    with torch.inference_mode(), count_multiplications(strict=False) as counted:
        delta.step(q, k, v, state)
    assert counted.total == sum(delta.cost(Shape(2, 2, 1, 1, 16, 16, causal=True)).needed.values())


def test_gradient_of_a_state():
    """Through the last state to the first one."""
    (q, k, v), rates, _ = draw(CASES["gated"])
    found = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "chunked")):
        delta, wide = Delta(backend=backend), {n: x.to(dtype) for n, x in rates.items()}
        state = delta.start(2, 2, 16, 16, dtype=dtype, device="cpu")
        first = torch.ones_like(state.kv_sum).requires_grad_()
        _, last = delta.step(q.to(dtype), k.to(dtype), v.to(dtype), type(state)(first), **wide)
        found.append(torch.autograd.grad(last.kv_sum.square().sum(), first)[0])
    assert rms(*found) <= 2e-6


def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    tensors, rates, flags = draw(CASES["everything"])
    given = [*tensors, *rates.values()]
    arriving = torch.randn(2, 4, 131, 7, generator=torch.Generator().manual_seed(1))
    delta, found = Delta(backend="triton"), []
    for rows in (slice(None), slice(1, None)):
        q, k, v, decay, beta = leaves = [x[rows].detach().requires_grad_() for x in given]
        some = {name: x[rows] for name, x in flags.items()}
        out = delta(q, k, v, causal=True, decay=decay, beta=beta, **some)
        found.append([out, *torch.autograd.grad(out, leaves, arriving[rows])])
    assert all(torch.equal(whole[1:], alone) for whole, alone in zip(*found, strict=True))


def test_hidden_tokens_are_absent_whatever_they_hold():
    (q, k, v), rates, _ = draw(CASES["gated"])
    kept = torch.arange(130) % 4 != 2
    names, given = ("q", "k", "v", *rates), [q, k, v, *rates.values()]
    found = []
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype) for x in given]
        if backend == "triton":
            for x in leaves:
                x[:, :, ~kept] = torch.nan
        else:
            leaves = [x[:, :, kept] for x in leaves]
        named = dict(zip(names, [x.requires_grad_() for x in leaves], strict=True))
        mask = kept.expand(2, 130) if backend == "triton" else None
        out = Delta(backend=backend)(**named, causal=True, mask=mask)
        out = out[:, :, kept] if backend == "triton" else out
        gradients = torch.autograd.grad(out.square().sum(), leaves)
        found.append([out, *(x[:, :, kept] if backend == "triton" else x for x in gradients)])
        assert all(x.isfinite().all() for x in gradients)
    assert max(rms(*pair) for pair in zip(*found, strict=True)) <= 4e-6


def test_a_nan_reaches_no_earlier_chunk():
    (q, k, v), rates, _ = draw(CASES["gated"])
    delta = Delta(backend="triton")
    clean = delta(q, k, v, causal=True, **rates)
    v[:, :, 70] = torch.nan
    out = delta(q, k, v, causal=True, **rates)
    assert torch.equal(out[:, :, :64], clean[:, :, :64])
    assert out[:, :, 70:].isnan().all()


def test_a_closed_gate_forgets_everything():
    """A rate of infinity is a start, and its gradient is finite."""
    (q, k, v), rates, _ = draw(CASES["gated"])
    starts = (torch.arange(130, device="cpu") % 50 == 20).expand(2, 130)
    delta, decay = Delta(backend="triton"), rates["decay"]
    closed = decay.masked_fill(starts[:, None], torch.inf).requires_grad_()
    out = delta(q, k, v, causal=True, decay=closed, beta=rates["beta"])
    assert rms(out, delta(q, k, v, causal=True, starts=starts, **rates)) <= 2e-6
    gradient = torch.autograd.grad(out.square().sum(), closed)[0]
    assert gradient.isfinite().all()
    assert gradient[starts[:, None].expand_as(gradient)].abs().max() <= 1e-4 * gradient.abs().max()


def test_the_rate_of_a_start_has_no_gradient():
    tensors, rates, flags = draw(CASES["starts"])
    *_, to_decay, _ = outputs_and_gradients(Delta(backend="triton"), tensors, rates, flags, torch.float32)
    begins = flags["starts"][:, None].expand_as(to_decay)
    assert (to_decay[begins] == 0).all()
    assert (to_decay[~begins] != 0).any()


def test_beta_of_0_writes_nothing_and_has_a_gradient():
    (q, k, v), rates, _ = draw(CASES["gated"])
    rates["beta"][:, :, ::2] = 0
    found = outputs_and_gradients(Delta(backend="triton"), (q, k, v), rates, {}, torch.float32)
    expected = outputs_and_gradients(Delta(backend="reference"), (q, k, v), rates, {}, torch.float64)
    assert max(rms(*pair) for pair in zip(found, expected, strict=True)) <= 4e-6
    assert rms(found[-1][:, :, ::2], expected[-1][:, :, ::2]) <= 4e-6


def test_without_a_backward_the_bits_are_the_same_and_less_is_kept():
    (q, k, v), rates, flags = draw(CASES["mask and starts"])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = Delta(backend="triton")(*leaves, causal=True, **rates, **flags)
    with torch.no_grad():
        assert torch.equal(Delta(backend="triton")(*leaves, causal=True, **rates, **flags), out)
    inputs = *(x.detach() for x in leaves), None, None, None, None, 2, 0.25
    kept = [[x.numel() for x in delta_attention(*inputs, needs)[2:]] for needs in (False, True)]
    gates, matrix, states, updates, factors = 6 * 64, 64 * 64, 32 * 32, 64 * 32, 64 * 4
    assert kept == [[0] * 6, [4 * 3 * x for x in (gates, matrix, states, updates, factors, matrix)]]
    with pytest.raises(ValueError, match="needs_backward=False, but an input requires a gradient"):
        delta_attention(*leaves, None, None, None, None, 2, 0.25, False)


def test_autocast_changes_nothing():
    (q, k, v), rates, _ = draw(CASES["gated"])
    found = []
    for enabled in (False, True):
        leaves = [x.detach().requires_grad_() for x in (q, k, v, *rates.values())]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = Delta(backend="triton")(*leaves[:3], causal=True, decay=leaves[3], beta=leaves[4])
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_double_backward_raises():
    q, k, v = (torch.randn(1, 1, 5, 4, device="cpu", requires_grad=True) for _ in range(3))
    out = Delta(backend="triton")(q, k, v, causal=True)
    with pytest.raises(RuntimeError, match=r"second derivatives .*backend=\"reference\""):
        torch.autograd.grad(out.sum(), q, create_graph=True)


def test_compiled_in_one_graph_for_any_length():
    mechanism = Delta(backend="triton")
    compiled = torch.compile(mechanism, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (19, 70):
        (q, k, v), rates, flags = draw(DeltaCase(tokens=tokens, heads=4, starts=True, masked=True))
        leaves = [x.requires_grad_() for x in (q, k, v, *rates.values())]
        results = []
        for call in (mechanism, compiled):
            out = call(q, k, v, causal=True, **rates, **flags)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_strided_inputs():
    """As a projection leaves them: heads after tokens."""
    (q, k, v), rates, _ = draw(CASES["gated"])
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    delta = Delta(backend="triton")
    assert torch.equal(delta(*turned, causal=True, **rates), delta(q, k, v, causal=True, **rates))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("key_dim", [16, 64, 128])
@pytest.mark.parametrize("value_dim", [7, 16, 32, 64, 256])
def test_rows_of_values_have_128_bytes(dtype, key_dim, value_dim):
    """In `delta_grad`: ptxas 12.8 mixes up the addresses of shorter ones without a pipeline."""
    q, v = (torch.zeros(1, 1, 3, dim, dtype=dtype) for dim in (key_dim, value_dim))
    plan = plan_of_operands(DeltaOperands(q, q, v, None, None, None), 1)
    assert min(plan.configs.grad.block_v, plan.padded_v) * plan.dot_dtype.itemsize >= 128


def test_a_rate_per_head():
    (q, k, v), rates, _ = draw(CASES["gated"])
    rate = torch.tensor([0.1, 2.0], device="cpu")
    drawn = (q, k, v), rates | {"decay": rate}, {}
    found = outputs_and_gradients(Delta(backend="triton"), *drawn, torch.float32)
    expected = outputs_and_gradients(Delta(backend="reference"), *drawn, torch.float64)
    # one sum over all tokens, which cancel each other
    assert max(rms(*pair) for pair in zip(found, expected, strict=True)) <= 2e-5


@pytest.mark.parametrize("name", ["shared state", "mask and starts"])
@pytest.mark.parametrize("has_state", [False, True], ids=["fresh", "continued"])
def test_segments_of_a_long_sequence(name, has_state, monkeypatch):
    """Segments that are walked in parallel change no result; on a GPU, only long sequences have them."""
    case = replace(CASES[name], tokens=300)
    (q, k, v), rates, flags = draw(case)
    generator = torch.Generator().manual_seed(2)
    state = torch.randn(2, case.key_heads, case.key_dim, case.value_dim, generator=generator) if has_state else None
    decay, beta, starts = rates.get("decay"), rates.get("beta"), flags.get("starts")
    inputs = q, k, v, decay, beta, starts, state, case.key_heads, 0.25
    leaves = [x.requires_grad_() for x in (q, k, v)]
    found = []
    for fewest in (1000, 2):
        monkeypatch.setattr(delta_plan, "MIN_SEGMENTED_CHUNKS", fewest)
        monkeypatch.setattr(delta_plan, "MAX_SEGMENTS", 3)
        monkeypatch.setattr(delta_plan, "SEGMENT_UNIT", 1)
        plan = plan_of_operands(DeltaOperands(q, k, v, decay, beta, starts), case.key_heads)
        assert plan.segments == (1 if fewest == 1000 else 3)
        out, last = delta_attention(*inputs, True)[:2]
        found.append([out, last, *torch.autograd.grad([out.sum() + last.sum()], leaves)])
    assert max(rms(*pair) for pair in zip(*found, strict=True)) <= 1e-6


def test_an_empty_sequence():
    (q, k, v), _, _ = draw(DeltaCase(tokens=0, rate=None, beta=None))
    out = Delta(backend="triton")(q.requires_grad_(), k, v, causal=True)
    assert out.shape == (2, 2, 0, 16)
    assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
    state = torch.randn(2, 2, 16, 16, device="cpu", requires_grad=True)
    last = delta_attention(q, k, v, None, None, None, state, 2, 0.25, True)[1]
    arriving = torch.randn_like(state)
    assert torch.equal(last, state)
    assert torch.equal(torch.autograd.grad(last, state, arriving)[0], arriving)
    assert not delta_attention(q.detach(), k, v, None, None, None, None, 2, 0.25, False)[1].any()


def test_operator_is_registered():
    (q, k, v), rates, _ = draw(DeltaCase(tokens=65, heads=1, key_heads=1, gate_heads=1))
    arguments = [x.requires_grad_() for x in (q, k, v, *rates.values())]
    state = torch.zeros(2, 1, 16, 16, device="cpu")
    torch.library.opcheck(delta_attention, (*arguments, None, state, 1, 0.25, True))
    with torch.no_grad():
        torch.library.opcheck(delta_attention, (*arguments, None, None, 1, 0.25, False))
        out, final, *saved = delta_attention(*arguments, None, state, 1, 0.25, True)
        torch.library.opcheck(delta_attention_backward, (out, final, *arguments, None, *saved, 1, 0.25))
        token = [x.detach()[:, :, :1] for x in arguments]
        torch.library.opcheck(delta_step, (*token, None, state, 0.25))


def test_unsupported_calls_name_the_limit():
    (q, k, v), _, _ = draw(DeltaCase(tokens=3))
    delta = Delta(backend="triton")
    with pytest.raises(ValueError, match="not per channel"):
        delta(q, k, v, causal=True, decay=torch.ones(2, 2, 3, 16, device="cpu"))
    with pytest.raises(ValueError, match="key_dim up to 128"):
        delta(*(torch.zeros(1, 1, 3, 129, device="cpu") for _ in range(2)), v[:1, :1], causal=True)
    with pytest.raises(ValueError, match="float32, bfloat16 and float16"):
        delta(q.double(), k.double(), v.double(), causal=True)


def test_cost_is_what_the_kernels_execute():
    (q, k, v), rates, _ = draw(CASES["shared state"])
    delta = Delta(backend="triton")
    with torch.no_grad(), count_multiplications(strict=False) as counted:
        delta(q, k, v, causal=True, **rates)
    shape = Shape(2, 2, 70, 70, 16, 16, causal=True, key_heads=1)
    assert counted.total == sum(delta.cost(shape).executed.values())
