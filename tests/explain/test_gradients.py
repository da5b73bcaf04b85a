import pytest
import torch

from qkv.explain import gradient_by_depth, gradient_norms, jacobian_norms
from qkv.layers import Dense, ScaledBranch
from qkv.models import MLP, Convolutional


def test_norms_of_a_chain_by_hand():
    """a_1 = 2x, a_2 = 3 a_1, out = 5 a_2: d out / d a_1 = 15, and d out / d w_1 = 15 x."""
    network = MLP((1, 1, 1, 1), "identity", bias=False)
    with torch.no_grad():
        for layer, weight in zip(network.layers, (2.0, 3.0, 5.0), strict=True):
            layer.linear.weight.fill_(weight)
    found = gradient_norms(network, lambda model: model(torch.tensor([[7.0]])).sum())
    assert [one.layer for one in found] == ["layers.0", "layers.1", "layers.2"]
    assert [one.output for one in found] == [15.0, 5.0, 1.0]
    assert [one.weight for one in found] == [15.0 * 7, 5.0 * 14, 42.0]
    assert all(p.grad is None for p in network.parameters())


def test_norms_of_a_convolutional_net():
    net = Convolutional(3, size=(14, 14))
    x = torch.randn(2, 1, 14, 14)
    found = gradient_norms(net, lambda model: model(x).square().sum())
    assert [one.layer for one in found] == [
        "filters.first",
        "filters.second",
        "classifier.0",
        "classifier.2",
        "classifier.4",
    ]
    net(x).square().sum().backward()
    first = net.filters.first
    expected = torch.cat((first.weight.grad.flatten(), first.bias.grad)).norm().item()
    assert found[0].weight == pytest.approx(expected, rel=1e-5)


def test_the_sigmoid_stays_below_a_quarter_per_layer():
    norms = gradient_by_depth("sigmoid", 20)
    assert norms[0] == 1.0
    assert all(norm <= 4.0 ** -(depth - 1) * (1 + 1e-12) for depth, norm in enumerate(norms, 1))


def test_relu_passes_exactly_one_where_it_is_active_and_nothing_where_not():
    layers = [Dense(3, 3, "relu", bias=False).double() for _ in range(20)]
    with torch.no_grad():
        for layer in layers:
            layer.linear.weight.copy_(torch.eye(3))
    assert jacobian_norms(layers, torch.tensor([[0.5, 2.0, 1.0]], dtype=torch.float64)) == [1.0] * 20
    assert jacobian_norms(layers, -torch.ones(1, 3, dtype=torch.float64)) == [1.0] + [0.0] * 19


def test_the_jacobian_of_the_whole_chain():
    layers = list(MLP([5] * 5, "gelu", residual=ScaledBranch(), normalization="layer").double().layers)[:4]
    x = torch.randn(1, 5, dtype=torch.float64)
    a = layers[0](x)
    whole = torch.autograd.functional.jacobian(lambda a: layers[3](layers[2](layers[1](a))), a).reshape(5, 5)
    assert jacobian_norms(layers, x)[-1] == pytest.approx(torch.linalg.svdvals(whole)[0].item(), rel=1e-12)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu", "gelu"])
def test_normed_residual_nets_are_flat(activation):
    norms = gradient_by_depth(activation, 20, residual=ScaledBranch(), normalization="layer")
    assert min(norms) >= 0.5
    assert max(norms) <= 30


@pytest.mark.parametrize("depth", [5, 20])
@pytest.mark.parametrize(("activation", "s"), [("sigmoid", 0.25), ("tanh", 1.0), ("relu", 1.0), ("gelu", 1.12891)])
def test_layers_scaled_by_depth_preserve_gradients(activation, s, depth):
    """Of any loss: (1 - s/L)^(L-1) to (1 + s/L)^(L-1) of what layer L has arrives at layer 1."""
    options = {"residual": ScaledBranch(1 / depth), "initialization": "orthogonal"}
    network = MLP([7] * (depth + 2), activation, **options)
    x, direction = torch.randn(1, 7), torch.randn(7, generator=torch.Generator().manual_seed(depth))
    found = gradient_norms(network, lambda model: model(x) @ direction)
    ratio = found[0].output / found[depth - 1].output
    assert (1 - s / depth) ** (depth - 1) <= ratio * (1 + 1e-5)
    assert ratio <= (1 + s / depth) ** (depth - 1) * (1 + 1e-5)


def test_both_bounds_of_scaled_layers_are_reached():
    """Without an activation s = 1: a layer of +1 gives the factor 1 + share, one of -1 the factor 1 - share."""
    for sign, share, expected in ((1.0, 1.0, 2.0**19), (1.0, 0.05, 1.05**19), (-1.0, 0.05, 0.95**19)):
        layers = [Dense(3, 3, "identity", bias=False, residual=ScaledBranch(share)).double() for _ in range(20)]
        with torch.no_grad():
            for layer in layers:
                layer.linear.weight.copy_(sign * torch.eye(3))
        norms = jacobian_norms(layers, torch.ones(1, 3, dtype=torch.float64))
        assert norms[-1] == pytest.approx(expected, rel=1e-12)


def test_a_loss_that_runs_nothing():
    with pytest.raises(ValueError, match=r"loss\(model\) ran no layer of the MLP"):
        gradient_norms(MLP((2, 1)), lambda model: torch.zeros((), requires_grad=True))
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        gradient_by_depth("relu", 0)
