import pytest
import torch

from qkv.models import Perceptron, family

CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


def test_and_by_hand():
    """One point after the other from weights of 0; worked out on paper, mistake by mistake."""
    perceptron = Perceptron(2)
    assert perceptron.fit(CORNERS, torch.tensor([0, 0, 0, 1])) == [1, 3, 3, 2, 1, 0]
    assert perceptron.weight.tolist() == [2.0, 1.0]
    assert perceptron.bias.item() == -2.0
    assert perceptron(CORNERS).tolist() == [0, 0, 0, 1]


def test_mistakes_never_end_where_no_line_separates():
    mistakes = Perceptron(2).fit(CORNERS, torch.tensor([0, 1, 1, 0]), epochs=50)
    assert len(mistakes) == 50
    assert min(mistakes) > 0


def test_it_settles_within_novikoffs_bound():
    """Mistakes <= (R / margin)^2, with R and the margin of points with a 1 appended."""
    points = torch.randn(200, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plane = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0, 0.3], dtype=torch.float64)
    plane /= plane.norm()
    extended = torch.cat((points, torch.ones(200, 1, dtype=torch.float64)), 1)
    distance = extended @ plane
    kept = distance.abs() > 0.1
    points, extended, distance = points[kept], extended[kept], distance[kept]
    perceptron = Perceptron(5).double()
    mistakes = perceptron.fit(points, (distance > 0).long(), epochs=10_000)
    assert mistakes[-1] == 0
    assert sum(mistakes) <= (extended.norm(dim=1).max() / distance.abs().min()) ** 2
    assert torch.equal(perceptron(points), (distance > 0).long())


def test_weights_may_be_set():
    perceptron = Perceptron(2)
    with torch.no_grad():
        perceptron.weight.copy_(torch.tensor([1.0, 1.0]))
        perceptron.bias.fill_(-0.5)
    assert perceptron(CORNERS).tolist() == [0, 1, 1, 1]
    assert perceptron.scores(CORNERS).tolist() == [-0.5, 0.5, 0.5, 1.5]


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_gradient_of_its_loss_is_its_rule(spread):
    points, labels = torch.randn(13, 5, dtype=torch.float64), torch.arange(13) % 2
    perceptron = Perceptron(5, spread=spread).double()
    error = labels - perceptron(points)
    assert error.abs().sum() > 2
    perceptron.loss(points, labels).backward()
    torch.testing.assert_close(perceptron.weight.grad, -(error[:, None] * points).sum(0))
    torch.testing.assert_close(perceptron.bias.grad, -error.sum().double())


def test_as_a_family():
    built = family("perceptron")
    assert built.build(built.configure({}), 5, 2).weight.shape == (5,)
    with pytest.raises(ValueError, match="a perceptron separates 2 classes, got 3"):
        built.build(built.configure({}), 5, 3)
    with pytest.raises(ValueError, match="spread must be 0 or more, got -1"):
        built.configure({"spread": -1})


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        (CORNERS, torch.tensor([0, 1, 2, 0]), "labels must be 0 or 1, got 2"),
        (CORNERS, torch.tensor([0.0, 1.0, 1.0, 0.5]), "labels must be 0 or 1, got 0.5"),
        (CORNERS, torch.tensor([0.0, 1.0, 1.0, 1.7]), r"labels must be 0 or 1, got 1\.7$"),
        (CORNERS, torch.tensor([0, 1]), r"got shapes \(4, 2\) and \(2,\)"),
    ],
)
def test_bad_labels(points, labels, message):
    with pytest.raises(ValueError, match=message):
        Perceptron(2).fit(points, labels)
