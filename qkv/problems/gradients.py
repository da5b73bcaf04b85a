"""Group A: gradients through many layers."""

from qkv.problems.expectation import Answer, AtLeast, AtMost, Between, Near
from qkv.problems.record import register_problem


@register_problem(
    "A3",
    hand_written="the sigmoid's gradient vanishes because its output is between 0 and 1",
    slip="it vanishes because its derivative is at most 1/4, one such factor per layer; the output plays no part",
    expected={
        "sigmoid, worst part of its bound 4^-(L-1)": AtMost(1 + 1e-9),
        "sigmoid at depth 20": AtMost(4.0**-19),
        "relu where active, depths 2 to 50": [1.0] * 49,
        "relu where not, depths 2 to 50": [0.0] * 49,
        "relu where active, residual unscaled, depth 20": 2.0**19,
        "relu where active, residual by 1/20, depth 20": Near(1.05**19, 1e-12),
        "residual unscaled, depth 20": AtLeast(1.0),
        "residual by 1/L, depths 2 to 50, worst part of (1 + s/L)^(L-1)": AtMost(1 + 1e-9),
        "residual by 1/L, largest over least, depths 10 to 50": AtMost(1.5),
        "residual by 1/20, gradient of layer 1 over that of layer 20": Between(
            (1 - 1.1290 / 20) ** 19, (1 + 1.1290 / 20) ** 19
        ),
        "residual and layer norm, largest over least, depths 10 to 50": AtMost(10),
    },
    slow=True,
)
def vanishing_gradients() -> Answer:
    """How much of a gradient passes through L layers, with weights of spectral norm 1, and what keeps it alive?

    Depths 2 to 50; sigmoid, tanh, ReLU and GELU, whose derivatives are at most s = 1/4, 1, 1 and 1.129; with and
    without normalization and a residual path. The path alone keeps a gradient from vanishing and lets it grow, by up to
    (1 + s)^(L-1). With each layer scaled by 1/L it is flat: between (1 - s/L)^(L-1) and (1 + s/L)^(L-1) at any depth.
    """
    from qkv.explain import first_over_last_gradient, gradients_by_depth, identity_gradients
    from qkv.layers import ScaledBranch

    steepest = {"sigmoid": 0.25, "tanh": 1.0, "relu": 1.0, "gelu": 1.1290}
    norms = {variant: found for name in steepest for variant, found in gradients_by_depth(name).items()}

    def each(variant: str) -> dict[str, list[float]]:
        return {name: norms[f"{name}, residual {variant}"] for name in steepest}

    def swing(variant: str) -> dict[str, float]:
        return {name: max(found[9:]) / min(found[9:]) for name, found in each(variant).items()}

    return {
        "norm of d a_L / d a_1 for L = 1 to 50": norms,
        "sigmoid, worst part of its bound 4^-(L-1)": max(x / 4.0**-depth for depth, x in enumerate(norms["sigmoid"])),
        "sigmoid at depth 20": norms["sigmoid"][19],
        "relu where active, depths 2 to 50": identity_gradients(50, 2.0)[1:],
        "relu where not, depths 2 to 50": identity_gradients(50, -2.0)[1:],
        "relu where active, residual unscaled, depth 20": identity_gradients(20, 2.0, ScaledBranch())[-1],
        "relu where active, residual by 1/20, depth 20": identity_gradients(20, 2.0, ScaledBranch(1 / 20))[-1],
        "residual unscaled, depth 20": {name: found[19] for name, found in each("unscaled").items()},
        "residual by 1/L, depth 20": {name: found[19] for name, found in each("by 1/L").items()},
        "residual by 1/L, depths 2 to 50, worst part of (1 + s/L)^(L-1)": {
            name: max(x / (1 + steepest[name] / L) ** (L - 1) for L, x in enumerate(found[1:], 2))
            for name, found in each("by 1/L").items()
        },
        "residual by 1/L, largest over least, depths 10 to 50": swing("by 1/L"),
        "residual by 1/20, gradient of layer 1 over that of layer 20": {
            name: first_over_last_gradient(name, 20) for name in steepest
        },
        "residual and layer norm, largest over least, depths 10 to 50": swing("and layer norm"),
    }
