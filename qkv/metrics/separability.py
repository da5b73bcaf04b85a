"""Whether a plane separates two classes, with a proof of the answer either way.

    yes:  a witness (w, b) with  y_i (w.x_i + b) > 0  for every i             (y_i = 1 for label 1, -1 for label 0)
    no:   weights u_i >= 0 with  sum_i u_i y_i x_i = 0  and  sum_i u_i y_i = 0,  which add up to 1 in each class

The second says that some mean of the one class is the same point as some mean of the other, and no plane passes
between a point and itself. By Farkas' lemma exactly one of the two exists; linear programming finds it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.storage import QkvError

CERTAIN = 1e-9
"""How far the weighted means may lie apart, in units of the largest coordinate."""


@dataclass(frozen=True)
class Separation:
    """The answer and its proof: `weight` and `bias` if the classes are separable, else `certificate`."""

    separable: bool
    weight: list[float] | None
    bias: float | None
    certificate: list[float] | None
    """One weight a point."""


def separating_line(points: Tensor, labels: Tensor) -> Separation:
    """A plane with all points of label 1 strictly on its positive side and all of label 0 on the other, or why not."""
    points = torch.as_tensor(points).double()
    labels = torch.as_tensor(labels)
    _require(points, labels)
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
    """No plane: the weights that prove it."""
    classes = torch.stack((labels == 1, labels == 0)).double()
    means = torch.cat((signed[:, :-1].T, classes))
    wanted = torch.cat((torch.zeros(signed.shape[1] - 1), torch.ones(2))).double()
    found = _solve(torch.zeros(len(labels)), A_eq=means.numpy(), b_eq=wanted.numpy(), bounds=(0, None))
    if found is None or float((means @ found - wanted).abs().max()) > CERTAIN:
        raise ValueError("points lie too close to call: no plane separates them in float64, and none is ruled out")
    return Separation(False, None, None, found.tolist())


def _require(points: Tensor, labels: Tensor) -> None:
    if points.dim() != 2 or labels.shape != points.shape[:1] or not points.numel():
        raise ValueError(
            f"points must be (points, inputs) and labels (points,), "
            f"got shapes {tuple(points.shape)} and {tuple(labels.shape)}"
        )
    if not bool(points.isfinite().all()):
        raise ValueError("points must be finite numbers")
    present = sorted({int(label) for label in labels})
    if present != [0, 1]:
        raise ValueError(f"labels must be 0 and 1, with both there, got {present}")


def _solve(cost: Tensor, **constraints: Any) -> Tensor | None:
    """A feasible point of a linear programme; None if there is none."""
    try:
        from scipy.optimize import linprog  # noqa: PLC0415 - an extra
    except ImportError:
        raise QkvError('linear programming needs scipy, which is not installed: pip install "qkv[optimize]"') from None
    constraints.setdefault("bounds", (None, None))
    result = linprog(cost.numpy(), method="highs", **constraints)
    return torch.from_numpy(result.x).double() if result.status == 0 else None
