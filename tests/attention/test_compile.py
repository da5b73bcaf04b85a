"""Every kind is one graph for all lengths, compiled or exported, with the values and gradients of eager mode."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.export import Dim

from qkv.attention import FeatureMap, Linear, Softmax, Taylor, build, kinds
from qkv.attention.internal import graph_op

HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 7, 5
CAPABILITIES = {"bias": "bias", "decay": "decay", "gate": "gate", "channel_gate": "channel_gate", "beta": "beta"}
CALLS = ("plain", "causal", "mask", "starts", *CAPABILITIES)
LENGTHS = (65, 2, 130, 257)


def mechanism(kind, **options):
    torch.manual_seed(0)
    return build(kind, key_dim=KEY_DIM, **options).double()


def takes(kind, call):
    found = mechanism(kind)
    if call in ("plain", "mask") and found.causal_only:
        return False
    return call not in CAPABILITIES or CAPABILITIES[call] in found.accepts


CASES = [(kind, call) for kind in kinds for call in CALLS if takes(kind, call)]
every_case = pytest.mark.parametrize(("kind", "call"), CASES)


def modifiers(call, batch, length):
    if call == "bias":  # of all pairs: 96 GiB at 32,768 tokens, so it is drawn for this call only
        return {"causal": True, "bias": torch.randn(batch, HEADS, length, length, dtype=torch.float64)}
    rates = torch.rand(batch, HEADS, length, KEY_DIM, dtype=torch.float64)
    return {
        "plain": {},
        "causal": {"causal": True},
        "mask": {"mask": torch.rand(batch, length) > 0.3},
        "starts": {"causal": True, "starts": torch.rand(batch, length) > 0.9, "mask": torch.rand(batch, length) > 0.2},
        "decay": {"causal": True, "decay": rates[0, :, 0, 0].clone()},
        "gate": {"causal": True, "decay": rates[..., 0].clone()},
        "channel_gate": {"causal": True, "decay": rates},
        "beta": {"causal": True, "beta": rates[..., 0].clone(), "decay": rates[..., 1].clone()},
    }[call]


def tokens(batch, length, dtype=torch.float64):
    sizes = (HEADS, KEY_DIM), (KEY_HEADS, KEY_DIM), (KEY_HEADS, VALUE_DIM)
    return [torch.randn(batch, heads, length, dim, dtype=dtype) for heads, dim in sizes]


def compile_anew(function, backend):
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)


def assert_one_graph(call, attention, backend, lengths, dtype=torch.float64, atol=1e-12):
    """Compare values and gradients with eager mode at each length; the compiler must run once."""
    compiled = compile_anew(attention, backend)
    for length in lengths:
        floats = ("bias", "decay", "beta")
        given = {n: x.to(dtype) if n in floats else x for n, x in modifiers(call, 2, length).items()}
        inputs = tokens(2, length, dtype)
        leaves = [x.requires_grad_() for x in (*inputs, *(given[n] for n in floats if n in given))]
        found, expected = compiled(*inputs, **given), attention(*inputs, **given)
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
        arriving = torch.randn_like(found)
        gradients = [torch.autograd.grad(out, leaves, arriving) for out in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=0, atol=100 * atol)
    assert counters["stats"]["unique_graphs"] == 1


@every_case
def test_compiles_once_for_all_lengths(kind, call):
    assert_one_graph(call, mechanism(kind), "aot_eager", LENGTHS)


@pytest.mark.parametrize(
    ("kind", "call", "options"),
    [
        ("softmax", "causal", {"window": 40}),
        ("softmax", "bias", {"window": 40}),
        ("taylor", "causal", {"order": 4, "scale": -0.5}),
        ("linear", "channel_gate", {"backend": "reference"}),
        ("delta", "beta", {"backend": "reference"}),
    ],
)
def test_compiles_with_options(kind, call, options):
    assert_one_graph(call, mechanism(kind, **options), "aot_eager", LENGTHS, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of inductor itself
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("taylor", "gate"),
        ("linear", "plain"),
        ("elu", "mask"),
        ("delta", "beta"),
        ("softmax", "gate"),
        ("additive", "plain"),
    ],
)
def test_compiles_with_inductor(kind, call):
    with torch.compiler.config.patch(force_disable_caches=True):  # a graph of an older version calls its operators
        assert_one_graph(call, mechanism(kind), "inductor", (65, 130, 257), atol=1e-11)


def test_the_first_length_may_equal_another_size_if_it_is_marked():
    attention, lengths = mechanism("linear"), (KEY_DIM, 33, 130)
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    for length in lengths:
        inputs = tokens(2, length)
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(compiled(*inputs), attention(*inputs), rtol=0, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 1


WRONG = {
    "the heads of k must divide those of q": ({"k": torch.zeros(2, 4, 9, KEY_DIM)}, {}),
    r"v has \(heads, keys\)": ({"v": torch.zeros(2, KEY_HEADS, 8, VALUE_DIM)}, {}),
    "decay must be a floating-point tensor of shape": ({}, {"causal": True, "decay": torch.zeros(2, 5, 9)}),
    r"mask must have shape \(batch, keys\)": ({}, {"mask": torch.ones(2, 8, dtype=torch.bool)}),
    "cannot take a score bias": ({}, {"bias": torch.zeros(1, HEADS, 9, 9)}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_shape_is_named_while_torch_traces(message):
    tensors, given = WRONG[message]
    inputs = {**dict(zip("qkv", tokens(2, 9, torch.float32), strict=True)), **tensors}
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message):
        compile_anew(mechanism("taylor").float(), "eager")(**inputs, **given)


def test_a_wrong_value_is_named_when_the_graph_runs():
    compiled, inputs = compile_anew(mechanism("linear"), "aot_eager"), tokens(2, 9)
    rates = torch.rand(2, HEADS, 9, dtype=torch.float64)
    compiled(*inputs, causal=True, decay=rates)
    rates[1, 3, 4] = -0.5
    with pytest.raises(ValueError, match=r"decay must be at least 0 .* got -0.5 at batch 1, head 3, key 4"):
        compiled(*inputs, causal=True, decay=rates)


def test_a_changed_option_is_seen():
    attention, inputs = mechanism("linear"), tokens(2, 9)
    compiled = compile_anew(attention, "aot_eager")
    before = compiled(*inputs)
    attention.scale = 3 * KEY_DIM**-0.5
    torch.testing.assert_close(compiled(*inputs), 3 * before, rtol=0, atol=1e-12)


class Doubled(FeatureMap):
    """A kind whose option is not what it keeps, and the same one with a parameter."""

    def __init__(self, rate=1.0, *, learned=False):
        super().__init__()
        self.rate = 2 * rate
        self.learned = learned
        if learned:
            self.weight = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def similarity(self, q, k):
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x):
        return torch.relu(x * (self.weight if self.learned else 1)) + self.rate

    def feature_dim(self, key_dim):
        return key_dim

    def default_scale(self, key_dim):
        return 1.0


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's, of a Function it traces
@pytest.mark.parametrize("learned", [False, True])
def test_a_kind_that_its_options_do_not_build_is_traced(learned, monkeypatch):
    """Built from its options, it would have another rate, and no trained weight."""
    monkeypatch.setattr(kinds, "_classes", {**kinds._classes, "doubled": Doubled})
    monkeypatch.setattr(Doubled, "kind", "doubled")
    attention = Doubled(learned=learned)
    assert not attention.is_built_by_its_options()
    torch.compiler.reset()
    compiled, inputs = torch.compile(attention, backend="aot_eager", fullgraph=True), tokens(2, 33)
    leaves = [x.requires_grad_() for x in inputs] + list(attention.parameters())
    found, expected = compiled(*inputs, causal=True), attention(*inputs, causal=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(x.square().sum(), leaves) for x in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


def test_what_its_options_build():
    changed, subclass = Linear(), type("Other", (Taylor,), {})()
    changed.features = changed.features
    built = [Linear(scale=0.5), Taylor(order=4), Softmax(window=3), build("additive", key_dim=5), changed, subclass]
    assert [x.is_built_by_its_options() for x in built] == [True, True, True, False, False, False]


def test_gradients_of_a_graph_in_another_thread():
    """The operator records for autograd in the thread that runs it, and leaves nothing changed there."""
    attention, inputs = mechanism("linear"), [x.requires_grad_() for x in tokens(2, 33)]
    out, found = compile_anew(attention, "aot_eager")(*inputs, causal=True), []
    excluded = torch._C._dispatch_tls_local_exclude_set()

    def differentiate():
        found.extend(torch.autograd.grad(out.sum(), inputs))
        found.append(torch._C._dispatch_tls_local_exclude_set())

    thread = threading.Thread(target=differentiate)
    thread.start()
    thread.join()
    assert found.pop() == excluded
    torch.testing.assert_close(found, list(torch.autograd.grad(attention(*inputs, causal=True).sum(), inputs)))


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_without_gradients(without):
    attention, inputs = mechanism("taylor"), tokens(2, 33)
    with without():
        found = compile_anew(attention, "aot_eager")(*inputs, causal=True)
    torch.testing.assert_close(found, attention(*inputs, causal=True), rtol=0, atol=1e-12)


def test_a_second_derivative_raises():
    arguments = (None, None, None, None, None, None, "linear()", [], [True, False])
    inputs = [x.requires_grad_() for x in tokens(2, 9)]
    out = graph_op.attention(*inputs, *arguments)[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(out.sum(), inputs, create_graph=True)


def test_the_operator_passes_the_checks_of_torch():
    inputs = [x.requires_grad_() for x in tokens(2, 9)]
    state = torch.randn(2, HEADS, KEY_DIM, VALUE_DIM, dtype=torch.float64, requires_grad=True)
    rates = torch.rand(2, HEADS, 9, dtype=torch.float64, requires_grad=True)
    arguments = (*inputs, None, rates, None, None, state, None, "linear(scale=%r)", [0.3], [True, False])
    torch.library.opcheck(graph_op.attention, arguments)


def test_transforms_of_torch_func_inside_a_graph():
    attention, (q, k, v) = mechanism("linear"), tokens(2, 33)

    def gradient(q):
        return torch.func.grad(lambda q: attention(q, k, v, causal=True).square().sum())(q)

    torch.testing.assert_close(compile_anew(gradient, "aot_eager")(q), gradient(q), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "elu", "taylor", "delta"])
def test_compiles_a_step_with_its_state(kind):
    """Outputs, sums and the gradient of the sums."""
    attention = mechanism(kind)
    start = attention.start(2, HEADS, KEY_DIM, VALUE_DIM, key_heads=KEY_HEADS, dtype=torch.float64)
    start.kv_sum = torch.randn_like(start.kv_sum).requires_grad_()

    def run(q, k, v):
        out, state = attention.step(q, k, v, start)
        return out, *state.sums

    compiled = compile_anew(run, "aot_eager")
    for length in (65, 130):
        inputs = tokens(2, length)
        found, expected = compiled(*inputs), run(*inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        gradients = [torch.autograd.grad(x[0].sum() + x[1].sum(), start.kv_sum) for x in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


class Call(nn.Module):
    """A mechanism whose modifiers are positional, as torch.export wants them."""

    def __init__(self, attention, given):
        super().__init__()
        self.attention = attention
        self.names = [name for name in given if name != "causal"]
        self.causal = "causal" in given

    def forward(self, q, k, v, *more):
        return self.attention(q, k, v, causal=self.causal, **dict(zip(self.names, more, strict=True)))


def dynamic_axes(name, x, batch, length):
    if name == "decay" and x.dim() == 1:
        return {}
    both = {3: length} if name == "bias" else {}
    return {0: batch, 1 if x.dtype == torch.bool else 2: length, **both}


def exported(attention, call):
    """Return the program of a call with any batch and length, and the module that it is made of."""
    batch, length = Dim("batch", min=2, max=64), Dim("length", min=2, max=65536)
    given = modifiers(call, 3, 65)
    wrapped, inputs = Call(attention, given), tokens(3, 65)
    named = [*zip("qkv", inputs, strict=True), *((name, given[name]) for name in given if name != "causal")]
    shapes = [dynamic_axes(name, x, batch, length) for name, x in named]
    axes = (*shapes[:3], tuple(shapes[3:])) if shapes[3:] else (*shapes,)
    return torch.export.export(wrapped, tuple(x for _, x in named), dynamic_shapes=axes), wrapped


def assert_equal_at_other_sizes(program, wrapped, call):
    for size in ((2, 17), (5, 257)):
        more = [x for name, x in modifiers(call, *size).items() if name != "causal"]
        inputs = (*tokens(*size), *more)
        torch.testing.assert_close(program.module()(*inputs), wrapped(*inputs), rtol=0, atol=1e-6)


@every_case
def test_compiles_by_export_with_dynamic_batch_and_length(kind, call, tmp_path):
    program, wrapped = exported(mechanism(kind), call)
    torch.export.save(program, tmp_path / "attention.pt2")
    assert_equal_at_other_sizes(torch.export.load(tmp_path / "attention.pt2"), wrapped, call)


@every_case
def test_the_reference_exports_to_the_operators_of_torch(kind, call):
    """A runtime other than PyTorch has no `qkv::attention`."""
    program, wrapped = exported(mechanism(kind, backend="reference"), call)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert {x.namespace for x in called if isinstance(x, torch._ops.OpOverload)} == {"aten"}
    assert_equal_at_other_sizes(program, wrapped, call)


@pytest.mark.slow
@every_case
def test_compiles_once_for_long_sequences(kind, call):
    """Kinds that hold all pairs, and masks of all pairs, stop at 2,048 tokens."""
    pairs = mechanism(kind).materializes_weights or (kind == "softmax" and call in ("mask", "starts", "bias", "gate"))
    lengths = (1024, 1500, 2048) if pairs else (1024, 4096, 32768)
    assert_one_graph(call, mechanism(kind).float(), "aot_eager", lengths, torch.float32, atol=1e-5)
