"""Pictures of some answers."""

from collections.abc import Callable

import torch

from qkv.attention import weights
from qkv.draw import Axis, Panel, Series, TreeNode, heatmaps, line_chart, rectangular_heatmaps, smooth, tree_diagram
from qkv.models import MLP
from qkv.positions import Sinusoidal
from qkv.problems.expectation import Answer


def _xor(answer: Answer) -> str:
    network = MLP([2, 2, 1], "tanh")
    for weight, value in zip(network.parameters(), answer["trained weights"], strict=True):
        weight.data = torch.tensor(value)
    first, bias = answer["trained weights"][:2]
    grid = torch.linspace(-0.5, 1.5, 401)
    enters: list[tuple[float, float | None]] = []
    leaves: list[tuple[float, float | None]] = []
    for x in grid.tolist():
        with torch.no_grad():
            inside = (network(torch.stack((torch.full_like(grid, x), grid), 1))[:, 0] > 0).int()
        change = inside.diff()
        for side, found in ((1, enters), (-1, leaves)):
            crossings = grid[:-1][change == side].tolist()
            found.append((x, crossings[0] if crossings else None))
    return line_chart(
        [
            Series("0", [(0, 0), (1, 1)], dots=True),
            Series("1", [(0, 1), (1, 0)], dots=True),
            *(Series(f"hidden unit {number + 1}", _line(first[number], bias[number])) for number in range(2)),
            Series("the network's boundary", [*enters, (1.5, None), *leaves]),
        ],
        "XOR: two lines, and what a network makes of them",
        Axis("x1"),
        Axis("x2"),
        width=560,
        height=560,
    )


def _line(weight: list[float], bias: float) -> list[tuple[float, float | None]]:
    """Return the line w.x + b = 0 inside the picture."""
    across = [-0.5 + n / 100 for n in range(201)]
    heights = [-(weight[0] * x + bias) / weight[1] for x in across]
    return [(x, y if -0.5 <= y <= 1.5 else None) for x, y in zip(across, heights, strict=True)]


def _gradients(answer: Answer) -> str:
    norms = answer["norm of d a_L / d a_1 for L = 1 to 50"]
    names = ("sigmoid", "tanh", "relu", "gelu")
    bound = Series("4^-(L-1)", [(depth, 4.0 ** -(depth - 1)) for depth in range(1, 51)], faint=True)
    active = Series("relu where active", list(enumerate(answer["relu where active, depths 2 to 50"], 2)))
    shown = {name: name for name in names}
    shown |= {f"{name}, residual unscaled": f"{name}, residual unscaled: grows" for name in names[1:]}
    shown |= {f"{name}, residual by 1/L": f"{name}, residual by 1/L: flat" for name in names}
    lines = [Series(title, list(enumerate(norms[name], 1))) for name, title in shown.items()]
    title = "Gradient norm after L layers"
    return line_chart([bound, *lines, active], title, Axis("layers L"), Axis("norm", log=True), height=560)


def _bias_variance(answer: Answer) -> str:
    names = {"bias^2 for degrees 1 to 12": "bias^2", "variance": "variance", "expected error": "expected error"}
    lines = [Series(title, list(enumerate(answer[name], 1))) for name, title in names.items()]
    return line_chart(lines, "Bias and variance of polynomials", Axis("degree"), Axis("squared error", log=True))


def _copying(_: Answer) -> str:
    panels = []
    for beta in (0.5, 1.0, 2.0, 4.0):
        a, b, c, d = beta * torch.eye(4, dtype=torch.float64)
        x = torch.stack((d + b, a, c + d))[None, None]
        panels.append(Panel(f"beta {beta:g}", weights(x, x, scale=1.0)[0, 0].tolist()))
    return heatmaps(panels, ["x1", "x2", "x3"], "Copying: the larger beta, the more each token attends to itself")


def _sinusoidal(_: Answer) -> str:
    waves = Sinusoidal(16).encode(torch.arange(24)).tolist()
    panel = Panel("PE(position, dimension)", waves, "orange is positive, blue negative")
    return rectangular_heatmaps(
        [panel], [str(n) for n in range(24)], [str(n) for n in range(16)], "Sinusoidal positions"
    )


def _lengths(answer: Answer) -> str:
    found = answer["nats above the entropy"]
    lines = [Series(name, list(zip(answer["lengths"], values, strict=True))) for name, values in found.items()]
    return line_chart(
        lines, "Trained on 32 tokens, tested on more", Axis("tokens", log=True), Axis("nats above the entropy")
    )


def _training(answer: Answer) -> str:
    lines = [
        Series(name, smooth(list(enumerate(losses, 1)), 10)) for name, losses in answer["loss of every update"].items()
    ]
    return line_chart(lines, "The loss while training", Axis("update"), Axis("loss"))


def _growth(answer: Answer) -> str:
    lines = [
        Series(title, [(n, value / answer[name][0]) for n, value in zip(answer["lengths"], answer[name], strict=True)])
        for name, title in (("counted", "multiplications, counted"), ("milliseconds", "time, measured"))
    ]
    return line_chart(lines, "How the cost grows with the length", Axis("tokens", log=True), Axis("times", log=True))


def _approximation(answer: Answer) -> str:
    found = answer["errors for K = 1..7 by size of the scores"]
    lines = [Series(f"scores up to {size}", list(enumerate(errors, 1))) for size, errors in found.items()]
    title = "Taylor terms against softmax attention"
    return line_chart(lines, title, Axis("terms K"), Axis("relative error", log=True))


def _search_tree(answer: Answer) -> str:
    branches = [
        TreeNode(node["parent"], f"{node['token']}  {node['probability']:.3g}", node["kept"])
        for node in answer["expanded nodes"]
    ]
    return tree_diagram(branches, "Nodes expanded by a beam of 2; kept paths are dark")


def _ranking(answer: Answer) -> str:
    points = list(zip(answer["recall"], answer["precision"], strict=True))
    best = [(recall, max(p for r, p in points if r >= recall)) for recall, _ in points]
    steps: list[tuple[float, float | None]] = [(0.0, best[0][1])]
    for recall, precision in best:
        steps += (
            [(recall, precision)] if precision == steps[-1][1] else [(steps[-1][0], precision), (recall, precision)]
        )
    lines = [Series("after each detection", points), Series("best precision at higher recall", steps)]
    return line_chart(lines, "Precision and recall of eight detections", Axis("recall"), Axis("precision"))


PICTURES: dict[str, dict[str, Callable[[Answer], str]]] = {
    "A1": {"": _xor},
    "A3": {"": _gradients},
    "A8": {"": _bias_variance},
    "B5": {"": _copying},
    "B7": {"": _sinusoidal},
    "B8": {"": _lengths, "-training": _training},
    "C5": {"": _growth},
    "D3": {"": _approximation},
    "D4": {"": _growth},
    "E2": {"": _search_tree},
    "E6": {"": _training},
    "F1": {"": _ranking},
}
"""Id of a problem -> suffix of the file name -> function that draws it."""


def draw_pictures(id: str, answer: Answer) -> dict[str, str]:  # noqa: A002 - the name in every document
    """Return {file name: SVG} of the pictures of this problem."""
    return {f"{id}{ending}.svg": make(answer) for ending, make in PICTURES.get(id, {}).items()}
