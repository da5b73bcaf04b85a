"""Group A: units and layers."""

from qkv.problems.expectation import Answer, AtLeast, AtMost, Near
from qkv.problems.record import register_problem


@register_problem(
    "A1",
    hand_written="a perceptron cannot learn XOR, because its outputs are 0 and 1",
    slip="AND's outputs are 0 and 1 too, and it learns that; XOR fails because no line has both 1s on one side",
    expected={
        "best line for XOR": 3,
        "perceptron on OR": 4,
        "perceptron on AND": 4,
        "perceptron on XOR": AtMost(3),
        "2-2-1 network set by hand": 4,
        "2-2-1 network trained": 4,
    },
)
def perceptron_and_xor() -> Answer:
    """Why can a perceptron w.x + b > 0 not learn XOR, how near can any line come, and what helps?"""
    from itertools import product

    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from qkv.metrics import separating_hyperplane
    from qkv.models import MLP, Perceptron

    points = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    tables = {"OR": [0, 1, 1, 1], "AND": [0, 0, 0, 1], "XOR": [0, 1, 1, 0]}
    xor = torch.tensor(tables["XOR"])
    # four points have 16 labelings; a line can separate most of them
    candidates = [torch.tensor(table) for table in product((0, 1), repeat=4)]
    drawable = [
        table for table in candidates if len(table.unique()) == 1 or separating_hyperplane(points, table).separable
    ]

    learned = {}
    for name, table in tables.items():
        perceptron = Perceptron(2)
        perceptron.fit(points, torch.tensor(table))
        learned[f"perceptron on {name}"] = int((perceptron(points) == torch.tensor(table)).sum())

    by_hand = MLP([2, 2, 1], "relu")  # x1 + x2, what exceeds 1 of it, and the first less twice the second
    weights = [[[1.0, 1], [1, 1]], [0.0, -1], [[1.0, -2]], [-0.5]]
    for weight, value in zip(by_hand.parameters(), weights, strict=True):
        weight.data = torch.tensor(value)

    torch.manual_seed(0)
    trained = MLP([2, 2, 1], "tanh")
    optimizer = torch.optim.Adam(trained.parameters(), 0.1)
    for _ in range(300):
        loss = binary_cross_entropy_with_logits(trained(points)[:, 0], xor.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        "best line for XOR": max(int((table == xor).sum()) for table in drawable),
        "tables that a line can draw": len(drawable),
        **learned,
        "2-2-1 network set by hand": int(((by_hand(points)[:, 0] > 0) == xor).sum()),
        "2-2-1 network trained": int(((trained(points)[:, 0] > 0) == xor).sum()),
        "trained weights": [weight.tolist() for weight in trained.parameters()],
    }


@register_problem(
    "A2",
    hand_written="f1(f2(x)) = (W1 W2) x + (W1 b2 + b1)",
    expected={"apart": AtMost(1e-12), "apart with a sigmoid between": AtLeast(0.01)},
)
def linear_layers_are_one() -> Answer:
    """What do linear layers without an activation between them amount to?"""
    import torch

    from qkv.models import MLP

    torch.manual_seed(0)
    deep, x = MLP([7, 11, 5], "identity").double(), torch.randn(3, 7).double()
    w2, b2, w1, b1 = deep.parameters()
    b2.data, b1.data = torch.randn(11).double(), torch.randn(5).double()
    one = x @ (w1 @ w2).T + (w1 @ b2 + b1)
    curved = MLP([7, 11, 5], "sigmoid").double()
    curved.load_state_dict(deep.state_dict())
    return {
        "apart": (deep(x) - one).abs().max().item(),
        "apart with a sigmoid between": (curved(x) - one).abs().max().item(),
    }


@register_problem(
    "A4",
    hand_written="a = -0.5, sigmoid 0.3775, ReLU 0",
    expected={"a": -0.5, "sigmoid": Near(0.377541, 5e-7), "relu": 0.0},
)
def one_unit() -> Answer:
    """A unit with w = (2, -1) and b = 0.5 sees x = (1, 3): its pre-activation, and its output by sigmoid and ReLU?"""
    import torch

    from qkv.layers import Dense

    found = {}
    for activation in ("identity", "sigmoid", "relu"):
        unit = Dense(2, 1, activation)
        unit.linear.weight.data = torch.tensor([[2.0, -1.0]])
        unit.linear.bias.data = torch.tensor([0.5])
        found[activation] = unit(torch.tensor([[1.0, 3.0]])).item()
    return {"a": found["identity"], "sigmoid": found["sigmoid"], "relu": found["relu"]}


@register_problem(
    "A5",
    hand_written="separable if some (w, b) has y_i (w.x_i + b) > 0 for every i; AND and OR are, XOR is not",
    expected={
        "AND": True,
        "OR": True,
        "XOR": False,
        "least y (w.x + b) of the witnesses": AtLeast(1e-9),
        "certificate of XOR": Near([0.5, 0.5, 0.5, 0.5], 1e-9),
    },
)
def linear_separability() -> Answer:
    """Which of AND, OR and XOR can a line separate, and what shows it?"""
    import torch

    from qkv.metrics import separating_hyperplane

    points = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]).double()
    tables = {"AND": [0, 0, 0, 1], "OR": [0, 1, 1, 1], "XOR": [0, 1, 1, 0]}
    found = {name: separating_hyperplane(points, torch.tensor(labels)) for name, labels in tables.items()}
    margins = []
    for name, one in found.items():
        if one.weight is not None and one.bias is not None:  # the witness
            side = points @ torch.tensor(one.weight).double() + one.bias
            margins.append(((2 * torch.tensor(tables[name]) - 1) * side).min().item())
    return {
        **{name: one.separable for name, one in found.items()},
        "least y (w.x + b) of the witnesses": margins,
        # with these weights the mean of the 1s is the mean of the 0s, and no line passes between a point and itself
        "certificate of XOR": found["XOR"].certificate,
    }


@register_problem(
    "A6",
    hand_written="P(y=0|x) = sigmoid((w0 - w1).x), by way of a line with a sign flipped",
    slip="a sign is flipped on the way: exp(w0.x) / (exp(w0.x) + exp(w1.x)) = 1 / (1 + exp(-(w0 - w1).x))",
    expected={"apart": AtMost(1e-12), "apart with the sign flipped": AtLeast(0.1)},
)
def softmax_of_two_classes() -> Answer:
    """Softmax regression with two classes: which logistic regression is it?"""
    import torch

    from qkv.models import logistic_regression, softmax_regression

    random = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 5, generator=random, dtype=torch.float64)
    x = torch.randn(100, 5, generator=random, dtype=torch.float64)
    two, one = softmax_regression(5, 2).double(), logistic_regression(5).double()
    next(two.parameters()).data = weights
    next(one.parameters()).data = weights[:1] - weights[1:]
    share = two(x).softmax(-1)[:, 0]
    return {
        "apart": (share - one(x)[:, 0].sigmoid()).abs().max().item(),
        "apart with the sign flipped": (share - (-one(x)[:, 0]).sigmoid()).abs().max().item(),
    }


@register_problem(
    "A7",
    hand_written="gradient mean(x) + (A + A')/2 theta; minimizer -A^-1 mean(x); J there b mean(y) - 1/2 m'A^-1 m",
    expected={
        "gradient, apart from autograd": AtMost(1e-12),
        "minimizer, apart from gradient descent": AtMost(1e-9),
        "least value, apart from the formula": AtMost(1e-12),
    },
)
def quadratic_objective() -> Answer:
    """J(theta) = mean_i(theta.x_i + b y_i) + 1/2 theta'A theta: its gradient, its minimizer and its least value?"""
    import torch

    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20, dim, generator=random, dtype=torch.float64) for dim in (3, 1))
    slanted = torch.randn(3, 3, generator=random, dtype=torch.float64)
    b, m = 0.7, x.mean(0)

    def loss(theta: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return (x @ theta + b * y[:, 0]).mean() + theta @ a @ theta / 2

    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(theta, slanted), theta)
    formula = m + (slanted + slanted.T) / 2 @ theta

    a = slanted @ slanted.T + torch.eye(3).double()  # symmetric and positive definite
    least = -torch.linalg.solve(a, m)
    found = torch.zeros(3, dtype=torch.float64)
    for _ in range(2000):
        found = found - (m + a @ found) / torch.linalg.matrix_norm(a, 2)
    value = b * y.mean() - m @ torch.linalg.solve(a, m) / 2
    return {
        "gradient, apart from autograd": (gradient - formula).abs().max().item(),
        "minimizer, apart from gradient descent": (least - found).abs().max().item(),
        "least value, apart from the formula": (loss(least, a) - value).abs().item(),
    }


@register_problem(
    "A8",
    hand_written="a model that is too simple has a high bias and a low variance",
    expected={
        "bias^2 of degree 1": Near(1 / 2 - 3 / 3.141592653589793**2, 0.003),
        "bias^2 of degree 1 over 3, and of 3 over 5": AtLeast(10),
        "variance rises with every degree": True,
        "variance over noise (degree + 1) / points, degrees 1 to 8": Near([1.0] * 8, 0.2),
        "bias^2 + variance + noise over the expected error": Near([1.0] * 12, 0.05),
    },
    slow=True,
)
def bias_and_variance() -> Answer:
    """What are bias and variance of polynomials of degree 1 to 12 through 40 points of a noisy sine?

    Measured by fitting each to 200 resampled sets.
    """
    from functools import partial

    import torch

    from qkv.data import NoisySine
    from qkv.metrics import bias_variance
    from qkv.models import Polynomial

    sine, inputs = NoisySine(count=40, noise=0.3), (torch.arange(100).double() + 0.5) / 100
    draw = partial(sine.draw, at=inputs)
    found = [bias_variance(Polynomial(d).fit, draw, inputs, sine.truth(inputs), 200) for d in range(1, 13)]
    bias, variance = [one.bias_squared for one in found], [one.variance for one in found]
    return {
        "bias^2 of degree 1": bias[0],
        # the sine is odd about the middle, so that an even degree adds nothing
        "bias^2 of degree 1 over 3, and of 3 over 5": [bias[0] / bias[2], bias[2] / bias[4]],
        "variance rises with every degree": variance == sorted(variance),
        # a fit keeps degree + 1 of the 40 directions that noise has
        "variance over noise (degree + 1) / points, degrees 1 to 8": [
            one / (sine.noise**2 * (degree + 1) / sine.count) for degree, one in enumerate(variance[:8], 1)
        ],
        "bias^2 + variance + noise over the expected error": [one.total / one.expected_error for one in found],
        "bias^2 for degrees 1 to 12": bias,
        "variance": variance,
        "expected error": [one.expected_error for one in found],
    }


@register_problem(
    "A9", hand_written="200 + 2 x 20 = 240 parameters", expected={"parameters": 240, "weights": 200, "norm": 40}
)
def layer_with_batch_normalization() -> Answer:
    """A layer 10 -> 20 without bias, with batch normalization: how many parameters?"""
    from qkv.layers import Dense

    layer = Dense(10, 20, "relu", normalization="batch", bias=False)
    return {
        "parameters": sum(weight.numel() for weight in layer.parameters()),
        "weights": layer.linear.weight.numel(),
        "norm": sum(weight.numel() for weight in layer.norm.parameters()),
    }
