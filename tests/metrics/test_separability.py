import subprocess
import sys

import pytest
import torch

from qkv.metrics import separating_hyperplane

CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


def sides(points, labels, found):
    return (2 * labels - 1) * (points.double() @ torch.tensor(found.weight, dtype=torch.float64) + found.bias)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [0, 1, 1, 1], [1, 0, 0, 0]])
def test_and_or_and_nor_have_a_hyperplane(labels):
    labels = torch.tensor(labels)
    found = separating_hyperplane(CORNERS, labels)
    assert found.separable
    assert found.certificate is None
    assert sides(CORNERS, labels, found).min() > 0


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [1, 0, 0, 1]])
def test_xor_with_a_certificate(labels):
    """The middles of both diagonals are the same point, and no other weights prove it."""
    found = separating_hyperplane(CORNERS, torch.tensor(labels))
    assert not found.separable
    assert (found.weight, found.bias) == (None, None)
    assert found.certificate == pytest.approx([0.5, 0.5, 0.5, 0.5], abs=1e-12)


def check_certificate(points, labels, weights):
    weights = torch.tensor(weights, dtype=torch.float64)
    assert weights.min() >= 0
    means = [(weights[labels == c, None] * points[labels == c]).sum(0) for c in (0, 1)]
    assert [weights[labels == c].sum().item() for c in (0, 1)] == pytest.approx([1, 1], abs=1e-9)
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=1e-8 * points.abs().max().item())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(10))
def test_random_points_either_way(seed, size):
    random = torch.Generator().manual_seed(seed)
    points = size * (5 + torch.randn(60, 3, generator=random, dtype=torch.float64))
    plane = torch.randn(3, generator=random, dtype=torch.float64)
    labels = ((points - 5 * size) @ plane > 0).long()
    found = separating_hyperplane(points, labels)
    assert found.separable
    assert sides(points, labels, found).min() > 0
    inside = torch.randint(2, (60,), generator=random)  # no plane separates 60 random labels in three dimensions
    no = separating_hyperplane(points, inside)
    assert not no.separable
    check_certificate(points, inside, no.certificate)


def test_one_point_in_both_classes():
    points, labels = torch.tensor([[2.0, 3.0], [2.0, 3.0]]), torch.tensor([0, 1])
    assert separating_hyperplane(points, labels).certificate == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        (CORNERS, [1, 1, 1, 1], r"labels must contain 0 and 1 and nothing else, got \[1\]"),
        (CORNERS, [0, 1, 2, 1], r"got \[0, 1, 2\]"),
        (CORNERS, [0, 1], r"got shapes \(4, 2\) and \(2,\)"),
        (CORNERS / 0, [0, 1, 1, 0], "points must be finite"),
    ],
)
def test_bad_input(points, labels, message):
    with pytest.raises(ValueError, match=message):
        separating_hyperplane(points, torch.tensor(labels))


def test_missing_scipy_names_the_extra_to_install():
    code = (
        "import sys; sys.modules['scipy.optimize'] = None\n"
        "import torch; from qkv.metrics import separating_hyperplane; from qkv.errors import QkvError\n"
        "try: separating_hyperplane(torch.eye(2), torch.tensor([0, 1]))\n"
        "except QkvError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("linear programming needs scipy, which is not installed: pip install")
