import pytest
import torch
from torch import nn

from qkv.cost import Span
from qkv.layers import PreNorm, ScaledBranch
from qkv.models import MLP, family, logistic_regression, softmax_regression

CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


def test_xor_with_weights_set_by_hand():
    """x or y, less twice (x and y), is more than a half exactly where they differ."""
    network = MLP((2, 2, 1), "relu")
    first, second = network.layers
    with torch.no_grad():
        first.linear.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
        first.linear.bias.copy_(torch.tensor([0.0, -1.0]))
        second.linear.weight.copy_(torch.tensor([[1.0, -2.0]]))
        second.linear.bias.fill_(-0.5)
    assert network(CORNERS).flatten().tolist() == [-0.5, 0.5, 0.5, -0.5]


def test_it_is_torch_s_own_layers_in_a_row():
    network = MLP((5, 7, 11, 3), "gelu").double()
    linears = [layer.linear for layer in network.layers]
    torchs = nn.Sequential(linears[0], nn.GELU(), linears[1], nn.GELU(), linears[2])
    x = torch.randn(13, 5, dtype=torch.float64)
    torch.testing.assert_close(network(x), torchs(x), rtol=0, atol=1e-12)
    assert sum(p.numel() for p in network.parameters()) == 5 * 7 + 7 + 7 * 11 + 11 + 11 * 3 + 3


def test_layers_without_activation_are_one_linear_map():
    network = MLP((5, 7, 11, 3), "identity").double()
    weight, bias = torch.eye(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for layer in network.layers:
        weight, bias = layer.linear.weight @ weight, layer.linear.weight @ bias + layer.linear.bias
    x = torch.randn(13, 5, dtype=torch.float64)
    torch.testing.assert_close(network(x), x @ weight.T + bias, rtol=0, atol=1e-12)


def test_each_residual_path_learns_for_itself_and_is_counted():
    """3 layers of 4 x 4 + 4, each with a norm of 8 numbers before it, and a last one of 5."""
    network = MLP((4, 4, 4, 4, 1), residual=PreNorm(4))
    norms = [layer.residual.norm for layer in network.layers[:3]]
    assert len({id(norm) for norm in norms}) == 3
    learned = sum(p.numel() for p in network.parameters())
    assert learned == 3 * (20 + 8) + 5 == sum(network.cost(Span(2, 1)).parameters.values())


def test_residual_paths_lead_around_layers_of_one_width():
    network = MLP((5, 7, 7, 3), "tanh", residual=ScaledBranch(0.5), normalization="layer")
    assert [layer.residual and layer.residual.scale for layer in network.layers] == [None, 0.5, None]
    norms = [type(layer.norm).__name__ for layer in network.layers]
    assert norms == ["LayerNorm", "LayerNorm", "Identity"]


def test_two_classes_of_softmax_are_logistic_regression():
    """P(0 | x) = sigmoid((w_0 - w_1).x + b_0 - b_1)"""
    both, one = softmax_regression(5, 2).double(), logistic_regression(5).double()
    layer = both.layers[0].linear
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        one.layers[0].linear.weight.copy_((layer.weight[0] - layer.weight[1])[None])
        one.layers[0].linear.bias.copy_(layer.bias[0] - layer.bias[1])
    x = torch.randn(13, 5, dtype=torch.float64)
    torch.testing.assert_close(both(x).softmax(-1)[:, 0], one(x)[:, 0].sigmoid(), rtol=0, atol=1e-12)


def test_regressions_begin_without_an_opinion():
    x = torch.randn(13, 5)
    assert torch.equal(softmax_regression(5, 3)(x), torch.zeros(13, 3))
    assert torch.equal(logistic_regression(5)(x), torch.zeros(13, 1))


def test_as_a_family():
    built = family("network")
    config = built.configure({"hidden_dim": 7, "layers": 2, "activation": "tanh"})
    assert built.build(config, 1, 5, 5, 3).sizes == (25, 7, 7, 3)
    assert built.build(config, 5, 2).sizes == (5, 7, 7, 1)
    assert built.build(built.configure({"layers": 0}), 5, 3).sizes == (5, 3)
    around = built.build(built.configure({"hidden_dim": 7, "layers": 2, "residual": True}), 5, 3).layers[1].residual
    assert (type(around), around.scale) == (ScaledBranch, 1.0)
    assert built.build(config, 1, 5, 5, 3)(torch.randn(2, 1, 5, 5)).shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP((5,)), r"sizes must name at least inputs and outputs, got \(5,\)"),
        (lambda: family("network").configure({"activation": "tan"}), "unknown activation 'tan'; did you mean 'tanh'"),
        (lambda: family("network").configure({"layers": -1}), "layers must be at least 0, got -1"),
        (lambda: family("network").configure({"hidden_dim": 0}), "hidden_dim must be at least 1, got 0"),
    ],
)
def test_bad_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
