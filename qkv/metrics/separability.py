"""Linear separability of two classes, with a certificate of either answer.

    yes:  a hyperplane (w, b) with  y_i (w.x_i + b) > 0  for every i             (y_i = 1 for label 1, -1 for label 0)
    no:   weights u_i >= 0 with  sum_i u_i y_i x_i = 0  and  sum_i u_i y_i = 0,  which sum to 1 in each class

The second means that the convex hulls of the classes share a point, so no hyperplane can separate them. By Farkas'
lemma exactly one of the two exists; linear programming finds it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError

CERTIFICATE_TOLERANCE = 1e-9
"""Largest distance between the weighted means, relative to the largest coordinate."""


@dataclass(frozen=True)
class Separation:
    """The result and its certificate: `weight` and `bias` if the classes are separable, else `certificate`."""

    separable: bool
    weight: list[float] | None
    bias: float | None
    certificate: list[float] | None
    """One weight per point."""


def separating_hyperplane(points: Tensor, labels: Tensor) -> Separation:
    """Return a hyperplane with label 1 on its positive side and 0 on its negative one, or a certificate of none."""
    points = torch.as_tensor(points).double()
    labels = torch.as_tensor(labels)
    _check_inputs(points, labels)
    sign = 2.0 * labels.double() - 1
    center = points.mean(0)
    size = float((points - center).abs().max()) or 1.0
    scaled = (points - center) / size
    signed = torch.cat((scaled, torch.ones(len(points), 1, dtype=torch.float64)), 1) * sign[:, None]
    found = _solve(torch.zeros(signed.shape[1]), A_ub=-signed.numpy(), b_ub=-torch.ones(len(points)).numpy())
    if found is not None:
        weight = found[:-1] / size
        bias = float(found[-1] - weight @ center)
        if bool((sign * (points @ weight + bias) > 0).all()):
            return Separation(True, weight.tolist(), bias, None)
    return _certify(signed, labels)


def _certify(signed: Tensor, labels: Tensor) -> Separation:
    """Return the weights that show that no hyperplane separates."""
    classes = torch.stack((labels == 1, labels == 0)).double()
    means = torch.cat((signed[:, :-1].T, classes))
    wanted = torch.cat((torch.zeros(signed.shape[1] - 1), torch.ones(2))).double()
    found = _solve(torch.zeros(len(labels)), A_eq=means.numpy(), b_eq=wanted.numpy(), bounds=(0, None))
    if found is None or float((means @ found - wanted).abs().max()) > CERTIFICATE_TOLERANCE:
        raise ValueError("points are too close to decide in float64: no hyperplane was found, and none is ruled out")
    return Separation(False, None, None, found.tolist())


def _check_inputs(points: Tensor, labels: Tensor) -> None:
    if points.dim() != 2 or labels.shape != points.shape[:1] or not points.numel():
        raise ValueError(
            f"points must be (points, inputs) and labels (points,), "
            f"got shapes {tuple(points.shape)} and {tuple(labels.shape)}"
        )
    if not bool(points.isfinite().all()):
        raise ValueError("points must be finite")
    present = sorted({int(label) for label in labels})
    if present != [0, 1]:
        raise ValueError(f"labels must contain 0 and 1 and nothing else, got {present}")


def _solve(cost: Tensor, **constraints: Any) -> Tensor | None:
    """Return a feasible point of a linear program, or None."""
    try:
        from scipy.optimize import linprog  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise QkvError('linear programming needs scipy, which is not installed: pip install "qkv[optimize]"') from None
    constraints.setdefault("bounds", (None, None))
    result = linprog(cost.numpy(), method="highs", **constraints)
    return torch.from_numpy(result.x).double() if result.status == 0 else None
