"""The delta rule versus the recurrence that defines it, written as a loop over tokens."""

import pytest
import torch

import qkv
from qkv.attention import Delta
from qkv.attention.internal.delta_rule import DeltaInputs, delta_rule
from qkv.cost import count_multiplications

BATCH, HEADS, TIME, KEY_DIM, VALUE_DIM = 2, 3, 23, 5, 7
GATES = {"none": None, "token": (), "channel": (KEY_DIM,)}
every_gate = pytest.mark.parametrize("gate", GATES)


def recurrence(q, k, v, *, decay=None, beta=None, starts=None, scale=KEY_DIM**-0.5):
    """One token after the other, as the papers have it; the heads of q, k and v are the same."""
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), []
    for t in range(k.shape[2]):
        if decay is not None:
            rate = decay[:, :, t]
            state = state * torch.exp(-(rate if rate.dim() == 3 else rate[..., None]))[..., None]
        if starts is not None:
            state = state.masked_fill(starts[:, t][:, None, None, None], 0)
        error = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        if beta is not None:
            error = error * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * error[:, :, None]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(outputs, 2)


def draw(gate="none", *, max_rate=1.0, beta=True, starts=False, dtype=torch.float64):
    """Draw q, k, v and the modifiers of a call."""
    torch.manual_seed(0)
    q, k = torch.randn(2, BATCH, HEADS, TIME, KEY_DIM, dtype=dtype)
    v = torch.randn(BATCH, HEADS, TIME, VALUE_DIM, dtype=dtype)
    modifiers = {}
    if GATES[gate] is not None:
        modifiers["decay"] = max_rate * torch.rand(BATCH, HEADS, TIME, *GATES[gate], dtype=dtype)
    if beta:
        modifiers["beta"] = 2 * torch.rand(BATCH, HEADS, TIME, dtype=dtype)
    if starts:
        modifiers["starts"] = torch.rand(BATCH, TIME) < 0.2
    return (q, k, v), modifiers


def with_gradients(run, inputs, modifiers):
    """Return the output and the gradients of all floating-point inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    changed = {name: x.detach().requires_grad_(x.is_floating_point()) for name, x in modifiers.items()}
    out = run(*leaves, **changed)
    arriving = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    wanted = [*leaves, *(x for x in changed.values() if x.requires_grad)]
    return [out.detach(), *torch.autograd.grad(out, wanted, arriving)]


def steps(splits):
    """Return a function that processes the tokens between `splits` by `step`."""

    def run(q, k, v, **modifiers):
        delta = Delta(chunk=4)
        state, outputs = delta.start(BATCH, HEADS, KEY_DIM, VALUE_DIM, dtype=q.dtype), []
        for start, end in zip([0, *splits], [*splits, TIME], strict=True):
            now = slice(start, end)
            part = {name: x[:, now] if x.dim() == 2 else x[:, :, now] for name, x in modifiers.items()}
            out, state = delta.step(q[:, :, now], k[:, :, now], v[:, :, now], state, **part)
            outputs.append(out)
        return torch.cat(outputs, 2)

    return run


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("max_rate", [1.0, 50.0])
@every_gate
def test_every_form_equals_the_recurrence_with_gradients(gate, max_rate, starts):
    inputs, modifiers = draw(gate, max_rate=max_rate, starts=starts)
    expected = with_gradients(recurrence, inputs, modifiers)
    forms = [lambda q, k, v, **m: Delta().weights(q, k, causal=True, **m) @ v, steps(range(1, TIME)), steps([6, 19])]
    forms += [
        lambda q, k, v, chunk=chunk, **m: Delta(chunk=chunk)(q, k, v, causal=True, **m) for chunk in (1, 3, 8, 64)
    ]
    for form in forms:
        for actual, wanted in zip(with_gradients(form, inputs, modifiers), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


@every_gate
def test_whole_chunks_equal_the_definition_with_gradients(gate):
    """Chunks of 64 tokens, whose triangular matrices are inverted by halves."""
    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 2, 150, KEY_DIM, dtype=torch.float64).unbind()
    modifiers = {"beta": 2 * torch.rand(1, 2, 150, dtype=torch.float64)}
    if GATES[gate] is not None:
        modifiers["decay"] = torch.rand(1, 2, 150, *GATES[gate], dtype=torch.float64)
    found, expected = (
        with_gradients(lambda *x, b=backend, **m: Delta(backend=b)(*x, causal=True, **m), inputs, modifiers)
        for backend in ("chunked", "reference")
    )
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_beta_is_1_if_it_is_left_out():
    inputs, _ = draw(beta=False)
    ones = torch.ones(BATCH, HEADS, TIME, dtype=torch.float64)
    for backend in ("reference", "chunked"):
        delta = Delta(backend=backend)
        torch.testing.assert_close(delta(*inputs, causal=True), delta(*inputs, causal=True, beta=ones))


def test_a_rate_per_head_is_a_constant_gate():
    inputs, modifiers = draw()
    rates = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    gate = rates[:, None].expand(BATCH, HEADS, TIME)
    for delta in (Delta(chunk=5), Delta(backend="reference")):
        outputs = [delta(*inputs, causal=True, decay=decay, **modifiers) for decay in (rates, gate)]
        torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)


def test_orthogonal_keys_return_their_last_value():
    """Each key is written twice, with another value; scale times the second one is read, exactly."""
    keys = 1e6 * torch.eye(KEY_DIM, dtype=torch.float64)  # long, so that the epsilon under the root is nothing
    k = torch.cat((keys, keys.flip(0)))[None, None]
    v = torch.randn(1, 1, 2 * KEY_DIM, VALUE_DIM, dtype=torch.float64)
    out = Delta(chunk=4)(k, k, v, causal=True)
    torch.testing.assert_close(out, v * KEY_DIM**-0.5, rtol=1e-12, atol=1e-12)
    added = qkv.attend(k / 1e6, k / 1e6, v, kind="linear", causal=True)
    assert (added - v * KEY_DIM**-0.5)[:, :, KEY_DIM:].abs().max() > 0.1


def test_beta_of_2_reflects():
    """One key, k = (1, 0), with v = 0 and beta = 2: the sign of what is stored flips at every token."""
    k = torch.tensor([1e6, 0.0], dtype=torch.float64).expand(1, 1, 6, 2)
    v = torch.zeros(1, 1, 6, 1, dtype=torch.float64)
    v[:, :, 0] = 0.5
    out = Delta(scale=1.0, chunk=4)(k, k, v, causal=True, beta=torch.full((1, 1, 6), 2.0, dtype=torch.float64))
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([1.0, -1, 1, -1, 1, -1], dtype=torch.float64))


@every_gate
def test_a_token_without_beta_and_decay_changes_nothing(gate):
    inputs, modifiers = draw(gate)
    idle = torch.arange(TIME) % 3 == 1
    for name in modifiers:
        modifiers[name][:, :, idle] = 0
    kept = {name: x[:, :, ~idle] for name, x in modifiers.items()}
    whole = Delta(chunk=5)(*inputs, causal=True, **modifiers)[:, :, ~idle]
    shorter = Delta(chunk=5)(*(x[:, :, ~idle] for x in inputs), causal=True, **kept)
    torch.testing.assert_close(whole, shorter, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@every_gate
def test_a_hidden_token_is_absent_whatever_it_holds(gate, backend):
    (q, k, v), modifiers = draw(gate)
    mask = (torch.arange(TIME) % 4 != 2).expand(BATCH, TIME)
    kept = mask[0]
    poisoned = {name: x.clone() for name, x in {"q": q, "k": k, "v": v, **modifiers}.items()}
    for x in poisoned.values():
        x[:, :, ~kept] = torch.nan
    delta = Delta(chunk=5, backend=backend)

    def run(q, k, v, **modifiers):
        return delta(q, k, v, causal=True, mask=mask, **modifiers)[:, :, kept]

    def shorter(q, k, v, **modifiers):
        return delta(
            *(x[:, :, kept] for x in (q, k, v)), causal=True, **{n: x[:, :, kept] for n, x in modifiers.items()}
        )

    expected = with_gradients(shorter, (q, k, v), modifiers)
    actual = with_gradients(run, [poisoned.pop(name) for name in "qkv"], poisoned)
    for found, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_zero_key_is_zero_with_gradient_zero():
    (q, k, v), modifiers = draw("channel")
    k[:, :, 4] = 0
    q[:, :, 6] = 0
    for delta in (Delta(chunk=5), Delta(backend="reference")):
        out, to_q, to_k, *_ = with_gradients(
            lambda *x, delta=delta, **m: delta(*x, causal=True, **m), (q, k, v), modifiers
        )
        assert (out[:, :, 6] == 0).all()
        assert (to_k[:, :, 4] == 0).all()
        assert (to_q[:, :, 6] == 0).all()
        assert (to_k[:, :, 3] != 0).all()


@pytest.mark.parametrize(("gate", "max_rate"), [("none", 0.0), ("token", 50.0), ("channel", 50.0)])
def test_keys_that_are_alike_lose_no_digits(gate, max_rate):
    """Keys of cosine 0.99 and beta 2: float32 errors of outputs and gradients are those of the definition."""
    torch.manual_seed(0)
    shared, own = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 200, 16)
    k = 0.995 * shared / shared.norm() * 2**0.5 + 0.0999 * own / own.norm(dim=-1, keepdim=True)
    q, v = torch.randn(2, 1, 2, 200, 16)
    modifiers = {"beta": torch.full((1, 2, 200), 2.0)}
    if gate != "none":
        rates = max_rate * torch.rand(1, 2, 200, *((16,) if gate == "channel" else ()))
        modifiers["decay"] = rates * (torch.rand_like(rates) < 0.2)
    forms = [lambda *x, b=backend, **m: Delta(backend=b)(*x, causal=True, **m) for backend in ("reference", "chunked")]
    wide = [x.double() for x in (q, k, v)], {name: x.double() for name, x in modifiers.items()}
    truth = with_gradients(forms[0], *wide)
    found = [with_gradients(form, (q, k, v), modifiers) for form in forms]
    for exact, by_definition, by_chunks in zip(truth, *found, strict=True):
        errors = [float((x - exact).square().mean().sqrt()) for x in (by_definition, by_chunks)]
        assert errors[1] <= 2 * errors[0] + 1e-7 * float(exact.square().mean().sqrt())


def test_a_gradient_of_the_state_passes_through():
    """Two steps equal one call, so the gradient of the first half arrives through the state alone."""
    (q, k, v), modifiers = draw("token")
    delta, cut = Delta(chunk=4), 9
    first = k.detach().requires_grad_()
    whole = delta(q, first, v, causal=True, **modifiers)[:, :, cut:].sum()
    (expected,) = torch.autograd.grad(whole, first)
    split = steps([cut])(q, first, v, **modifiers)[:, :, cut:].sum()
    (found,) = torch.autograd.grad(split, first)
    assert found[:, :, :cut].abs().max() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_refused_by_the_chunks_and_right_in_the_definition():
    (q, k, v), _ = draw()
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(Delta()(q, k, v, causal=True).sum(), q, create_graph=True)
    (first,) = torch.autograd.grad(Delta(backend="reference")(q, k, v, causal=True).sum(), q, create_graph=True)
    torch.autograd.grad(first.square().sum(), q)


@every_gate
def test_transforms_of_torch_func(gate):
    (q, k, v), modifiers = draw(gate)
    expected = with_gradients(lambda *x, **m: Delta(chunk=5)(*x, causal=True, **m), (q, k, v), modifiers)[1]
    arriving = torch.randn((*expected.shape[:3], VALUE_DIM), generator=torch.Generator().manual_seed(1), dtype=q.dtype)

    def loss(q):
        return (Delta(chunk=5)(q, k, v, causal=True, **modifiers) * arriving).sum()

    torch.testing.assert_close(torch.func.grad(loss)(q), expected, rtol=1e-12, atol=1e-12)


def saved_elements(time):
    """Return the elements that the backward of a call keeps."""
    inputs, sizes = [torch.randn(1, 2, time, 8, requires_grad=True) for _ in range(3)], []

    def keep(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        Delta(chunk=32)(*inputs, causal=True)
    return sum(sizes)


def test_memory_is_linear_in_the_length():
    """Kept are q, k, v and errors of all tokens, the state before each chunk, and the last state."""
    for time in (256, 512):
        assert saved_elements(time) == 2 * (4 * time * 8 + (time // 32 + 1) * 8 * 8)


def test_counted_multiplications_of_gates():
    for gate in GATES:
        inputs, modifiers = draw(gate)
        for delta in (Delta(chunk=5), Delta(chunk=8), Delta(), Delta(backend="reference")):
            with count_multiplications() as counted:
                delta(*inputs, causal=True, **modifiers)
            shape = qkv.cost.Shape(
                BATCH,
                HEADS,
                TIME,
                TIME,
                KEY_DIM,
                VALUE_DIM,
                causal=True,
                gate_heads=HEADS if gate != "none" else 0,
                channel_gate=gate == "channel",
            )
            assert counted.total == sum(delta.cost(shape).executed.values())


def test_the_triangular_solve_is_counted_by_its_formula():
    """Each column of the solution takes one multiplication per entry below the diagonal."""
    with count_multiplications() as counted:
        torch.linalg.solve_triangular(
            torch.eye(6).expand(4, 6, 6), torch.ones(4, 6, 5), upper=False, unitriangular=True
        )
    assert counted.by_operation["linalg_solve_triangular"] == 4 * 5 * (6 * 5 // 2)


def test_needed_is_three_products_with_the_state():
    cost = Delta().cost(qkv.cost.Shape(1, 16, 4096, 4096, 128, 128, causal=True))
    assert sum(cost.needed.values()) == 16 * 4096 * 3 * 128 * 128
    assert cost.state == {"sums": 16 * 128 * 128 * 4}


def test_bad_input_of_a_call():
    (q, k, v), modifiers = draw()
    with pytest.raises(ValueError, match="'delta' needs causal=True"):
        Delta()(q, k, v)
    with pytest.raises(ValueError, match="'delta' cannot take a score bias"):
        Delta()(q, k, v, causal=True, bias=torch.zeros(1, HEADS, TIME, TIME, dtype=torch.float64))
    modifiers["beta"][0, 0, 3] = 4
    with pytest.raises(ValueError, match=r"beta must be in 0..2 at every visible token, got 4 at batch 0, head 0"):
        Delta()(q, k, v, causal=True, **modifiers)
    with pytest.raises(ValueError, match="has no backend 'quick'"):
        Delta(backend="quick")


def test_bad_input_of_a_state():
    (q, k, v), _ = draw(beta=False)
    delta = Delta()
    with pytest.raises(TypeError, match=r"from delta.start\(\), got NoneType"):
        delta.step(q, k, v, None)
    with pytest.raises(ValueError, match=r"need \[\(2, 3, 5, 7\)\]"):
        delta.step(q, k, v, delta.start(BATCH, HEADS, KEY_DIM, VALUE_DIM + 1, dtype=torch.float64))
    state = delta.start(BATCH, HEADS, KEY_DIM, VALUE_DIM, key_heads=1, dtype=torch.float64)
    rates = torch.ones(BATCH, HEADS, TIME, dtype=torch.float64)
    with pytest.raises(ValueError, match="start it with key_heads=3"):
        delta.step(q, k[:, :1], v[:, :1], state, decay=rates)


def test_half_precision_rounds_once():
    (q, k, v), modifiers = draw("token", dtype=torch.float32)
    narrow = [x.half() for x in (q, k, v)]
    out = Delta(chunk=5)(*narrow, causal=True, **modifiers)
    exact = Delta(chunk=5)(*(x.float() for x in narrow), causal=True, **modifiers)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, exact.half(), rtol=1e-3, atol=1e-5)


def test_an_empty_sequence_keeps_the_state():
    state = torch.randn(1, 2, 3, 4)
    empty = DeltaInputs(torch.zeros(1, 2, 1, 0, 3), torch.zeros(1, 2, 0, 3), torch.zeros(1, 2, 0, 4))
    out, after = delta_rule(empty, state, 1.0, 8)
    assert out.shape == (1, 2, 1, 0, 4)
    assert torch.equal(after, state)
