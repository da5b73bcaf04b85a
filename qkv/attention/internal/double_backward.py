"""Raise on double backward instead of returning wrong second derivatives."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

Backward = Callable[..., Any]


def forbid_double_backward(backward: Backward) -> Backward:
    """Decorate a backward to raise under create_graph=True.

    torch's `once_differentiable` raises only if an incoming gradient requires grad. The gradient of a sum is a
    constant: torch then returns second derivatives that miss everything that passes through here.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # inside a backward this means create_graph=True
            raise RuntimeError(
                "second derivatives (create_graph=True) are not supported by this backend of attention; "
                'use backend="reference"'
            )
        return backward(ctx, *gradients)

    return checked
