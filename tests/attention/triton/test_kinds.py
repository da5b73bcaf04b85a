"""A mechanism hands its kernel functions over: third-party kinds with kernels, and without."""

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from qkv.attention import FeatureMap, Linear, Taylor
from qkv.attention.triton import dispatch, kinds
from qkv.attention.triton.configs import LINEAR_CONFIGS, TAYLOR_CONFIGS, tuned_for
from qkv.attention.triton.kinds import LINEAR, KernelKind, kernel_kind
from qkv.cost import Shape

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"  # triton's interpreter does that
)
import triton
import triton.language as tl

from qkv.attention.triton import constants
from qkv.attention.triton.kernels import chunk_state, common, decode_step, gate, grad_qk, linear, output, taylor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_PARAMETERS = 40


class Squared(FeatureMap):
    """Attention weighted by q^2.k^2, elementwise squares; it lists a backend for which it has no kernel."""

    backends = (*FeatureMap.backends, "triton")

    def __init__(self, backend="auto", chunk=None):
        super().__init__()
        self.backend, self.chunk = backend, chunk

    def similarity(self, q, k):
        return q**2 @ (k**2).transpose(-1, -2)

    def features(self, x):
        return x**2

    def feature_dim(self, key_dim):
        return key_dim

    def default_scale(self, key_dim):
        return 0.5


@triton.jit
def map_input(x, valid, scale, MASKED: tl.constexpr, TILES: tl.constexpr):
    scaled = x.to(tl.float32) * scale
    return scaled * scaled


@triton.jit
def map_grad(x, gradient, scale):
    return gradient * 2.0 * x.to(tl.float32) * scale * scale


@triton.jit
def features_t(x, first, second, first_bias, second_bias, features, scale, TILES: tl.constexpr):
    scaled = tl.trans(x).to(tl.float32) * scale
    return scaled * scaled


@triton.jit
def features(x, features, pointers, scale, PURE: tl.constexpr, TILES: tl.constexpr):
    scaled = x.to(tl.float32) * scale
    return scaled * scaled


@triton.jit
def token_features(x, features, first, second, terms, scale, FEATURES: tl.constexpr):
    scaled = linear.token_features(x, features, first, second, terms, scale, FEATURES)
    return scaled * scaled


def _squared_functions():
    return constants.KernelFunctions(
        map_input=map_input,
        map_grad=map_grad,
        weight=linear.weight,
        slope=linear.slope,
        pair_sums=linear.pair_sums,
        load_picks=linear.load_picks,
        features_t=features_t,
        features=features,
        grad_features=linear.grad_features,
        token_features=token_features,
    )


SQUARED = KernelKind(
    name="squared of a test",
    load_functions=_squared_functions,
    normalizes=True,
    scales_scores=False,
    max_key_dim=128,
    segment=128,
    wide_segment=128,
    configs=LINEAR_CONFIGS,
)


class SquaredWithKernels(Squared):
    triton = SQUARED


def random_inputs(length=37):
    return [torch.randn(1, 2, length, dim, device=DEVICE, requires_grad=True) for dim in (5, 5, 7)]


def test_a_kind_without_kernels_raises_for_triton():
    q, k, v = random_inputs()
    with pytest.raises(ValueError, match="cannot take this call of attention kind 'Squared': it has no kernels"):
        Squared(backend="triton")(q, k, v, causal=True)
    state = Squared().start(1, 2, 5, 7, device=DEVICE)
    with pytest.raises(ValueError, match="it has no kernels"):
        Squared(backend="triton").step(q, k, v, state)
    with pytest.raises(ValueError, match="not available for attention kind 'Squared'"):
        Squared(backend="triton").cost(Shape(1, 2, 37, 37, 5, 7))


def test_a_kind_without_kernels_has_a_reason_to_fall_back():
    q, _, v = random_inputs()
    assert "`triton` is None" in dispatch.unsupported_reason(Squared(), q, v)


@pytest.mark.gpu
def test_auto_falls_back_for_a_kind_without_kernels():
    q, k, v = random_inputs()
    with pytest.warns(UserWarning, match="'Squared' falls back to the slower chunked form: it has no kernels"):
        out = Squared()(q, k, v, causal=True)
    assert torch.equal(out, Squared(backend="chunked")(q, k, v, causal=True))


@pytest.mark.parametrize("causal", [True, False])
def test_a_third_party_kind_with_kernels(causal):
    """Outputs and gradients against its definition, by kernel functions that are defined here."""
    inputs = random_inputs()
    arriving = torch.randn(1, 2, 37, 7, device=DEVICE)
    results = []
    for mechanism in (SquaredWithKernels("triton", chunk=16), Squared("reference")):
        out = mechanism(*inputs, causal=causal)
        results.append([out, *torch.autograd.grad(out, inputs, arriving)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_a_third_party_kind_decodes_with_kernels():
    q, k, v = (x.detach() for x in random_inputs(length=3))
    expected = Squared("reference")(q, k, v, causal=True)
    mechanism, outputs = SquaredWithKernels("triton"), []
    with torch.inference_mode():
        state = mechanism.start(1, 2, 5, 7, device=DEVICE)
        for t in range(3):
            out, state = mechanism.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
            outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 2), expected, rtol=2e-5, atol=2e-5)


def test_a_subclass_inherits_the_kernels():
    class Renamed(Linear):
        """Linear attention under another name."""

    inputs = [x.detach() for x in random_inputs()]
    found, expected = (kind(backend="triton", chunk=16)(*inputs, causal=True) for kind in (Renamed, Linear))
    assert torch.equal(found, expected)


def test_names_of_kernels_are_unique():
    assert kernel_kind("linear") is LINEAR
    with pytest.raises(ValueError, match="name='linear' of a KernelKind is taken"):
        KernelKind(
            name="linear",
            load_functions=_squared_functions,
            normalizes=True,
            scales_scores=True,
            max_key_dim=1,
            segment=16,
            wide_segment=16,
            configs=LINEAR_CONFIGS,
        )
    assert kernel_kind("linear") is LINEAR


def test_a_mechanism_is_imported_without_triton():
    code = "import sys, qkv.attention; print(qkv.attention.Taylor.triton.name, 'triton' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == f"{Taylor.triton.name} False\n"


@pytest.mark.parametrize(
    ("block_k", "block_v", "entry"),
    [(16, 16, (16, 64)), (16, 64, (16, 64)), (32, 64, (64, 64)), (16, 128, (16, 128)), (64, 128, (64, 128))],
)
def test_configurations_are_chosen_by_sizes(block_k, block_v, entry):
    assert tuned_for(TAYLOR_CONFIGS, block_k, block_v) is TAYLOR_CONFIGS[entry]


@pytest.mark.parametrize("kind", [kinds.TAYLOR, kinds.LINEAR, kinds.ELU], ids=lambda kind: kind.name)
def test_every_size_within_the_limits_has_a_configuration(kind):
    for block_k in (16, 32, 64, 128):
        for block_v in (16, 32, 64, 128):
            found = block_k > kind.max_key_dim or tuned_for(kind.configs, block_k, block_v)
            assert found


def jitted(module: ModuleType):
    return {
        name: x for name, x in vars(module).items() if hasattr(x, "arg_names") and x.fn.__module__ == module.__name__
    }


@pytest.mark.parametrize(
    "module",
    [chunk_state, common, decode_step, gate, grad_qk, linear, output, taylor],
    ids=lambda module: module.__name__,
)
def test_no_kernel_has_many_parameters(module):
    found = jitted(module)
    assert found
    assert {name: len(x.arg_names) for name, x in found.items() if len(x.arg_names) > MAX_PARAMETERS} == {}
