import pytest
import torch
from torch import nn

from qkv.layers import Dense, ScaledBranch
from qkv.layers.activation import ACTIVATIONS

CLOSED = {
    "identity": lambda a: a,
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "tanh": lambda a: (torch.exp(a) - torch.exp(-a)) / (torch.exp(a) + torch.exp(-a)),
    "relu": lambda a: a * (a > 0),
    "gelu": lambda a: a * 0.5 * (1 + torch.erf(a / 2**0.5)),
    "gelu_tanh": lambda a: a * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (a + 0.044715 * a**3))),
}


def set_weights(layer, weight, bias):
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor(weight))
        layer.linear.bias.copy_(torch.tensor(bias))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_the_activations_are_their_formulas(name):
    layer = Dense(5, 7, name).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    a = x @ layer.linear.weight.T + layer.linear.bias
    torch.testing.assert_close(layer(x), CLOSED[name](a), rtol=0, atol=1e-12)
    assert torch.equal(layer.pre_activation(x), layer.linear(x))


def test_a_unit_by_hand():
    """2 * 1 - 1 * 3 + 0.5 = -0.5; sigmoid(-0.5) = 0.377541."""
    x = torch.tensor([[1.0, 3.0]])
    for name, expected in (("identity", -0.5), ("sigmoid", 0.377541), ("relu", 0.0)):
        unit = Dense(2, 1, name)
        set_weights(unit, [[2.0, -1.0]], [0.5])
        assert unit(x).item() == pytest.approx(expected, abs=5e-7)
        assert unit.pre_activation(x).item() == -0.5


def test_ten_to_twenty_with_batch_normalization_has_240_parameters():
    layer = Dense(10, 20, normalization="batch", bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 200 + 2 * 20


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_norm_is_between_the_product_and_the_activation(kind):
    layer = Dense(5, 7, "relu", normalization=kind).double()
    x = torch.randn(11, 5, dtype=torch.float64)
    a = layer.linear(x)
    axis = 0 if kind == "batch" else 1
    normed = (a - a.mean(axis, keepdim=True)) / (a.var(axis, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), normed.clamp(min=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["batch", "layer"])
@pytest.mark.parametrize("shape", [(11, 7, 5), (2, 3, 7, 5)])
def test_norm_is_over_the_units_for_any_number_of_leading_axes(kind, shape):
    """Axis 1, where BatchNorm1d expects the units, also has size 7."""
    layer, x = Dense(5, 7, "relu", normalization=kind).double(), torch.randn(shape, dtype=torch.float64)
    flat = Dense(5, 7, "relu", normalization=kind).double()
    flat.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), flat(x.flatten(0, -2)).view(*shape[:-1], 7), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.eval()(x[0, 0]), flat.eval()(x.flatten(0, -2)).view(*shape[:-1], 7)[0, 0])


def test_the_residual_path():
    layer = Dense(5, 5, "tanh", residual=ScaledBranch())
    x = torch.randn(3, 5)
    torch.testing.assert_close(layer(x), x + torch.tanh(layer.linear(x)))
    with pytest.raises(ValueError, match="residual needs as many outputs as inputs, got 5 inputs and 7 outputs"):
        Dense(5, 7, residual=ScaledBranch())


def test_bad_input_residual_raises():
    with pytest.raises(TypeError, match=r"residual must be a module such as ScaledBranch\(\), or None, got True"):
        Dense(5, 5, residual=True)


def test_a_scaled_branch():
    layer = Dense(5, 5, "tanh", residual=ScaledBranch(0.25)).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x + torch.tanh(layer.linear(x)) / 4, rtol=0, atol=1e-12)
    assert str(layer.residual) == "ScaledBranch(scale=0.25)"
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"scale must be positive and finite, got {scale}"):
            ScaledBranch(scale)


@pytest.mark.parametrize(("name", "variance"), [("xavier", 2 / (300 + 500)), ("he", 2 / 300), ("lecun", 1 / 300)])
def test_variances_of_initial_weights(name, variance):
    layer = Dense(300, 500, initialization=name)
    assert layer.linear.weight.var().item() == pytest.approx(variance, rel=0.03)
    assert layer.linear.bias.abs().max() == 0


def test_auto_initialization_depends_on_the_activation():
    for activation, variance in (("relu", 2 / 300), ("gelu", 2 / 300), ("tanh", 2 / 800), ("sigmoid", 2 / 800)):
        assert Dense(300, 500, activation).linear.weight.var().item() == pytest.approx(variance, rel=0.03)


def test_orthogonal_weights_have_spectral_norm_one():
    weight = Dense(13, 7, initialization="orthogonal").linear.weight.double()
    torch.testing.assert_close(weight @ weight.T, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "rely"}, "unknown activation 'rely'; did you mean 'relu'"),
        ({"normalization": "bach"}, "unknown normalization 'bach'; did you mean 'batch'"),
        ({"initialization": "xaver"}, "unknown initialization 'xaver'; did you mean 'xavier'"),
    ],
)
def test_unknown_names(options, message):
    with pytest.raises(ValueError, match=message):
        Dense(3, 5, **options)


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="inputs and outputs must be at least 1, got 0 and 5"):
        Dense(0, 5)


def test_parity_with_torch_linear():
    layer, torchs = Dense(5, 7), nn.Linear(5, 7)
    torchs.load_state_dict(layer.linear.state_dict())
    x = torch.randn(2, 3, 5)
    assert torch.equal(layer(x), torchs(x))
