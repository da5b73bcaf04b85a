"""A backward without a backward of its own: whoever asks for second derivatives is told, and gets no wrong ones."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

Backward = Callable[..., Any]


def differentiable_once(backward: Backward) -> Backward:
    """Refuse a gradient of gradients (create_graph=True) as soon as it is asked for.

    torch's `once_differentiable` objects only if an incoming gradient has a history. That of a sum is a constant: then
    it says nothing, and the second derivatives lack all that goes through here.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # in a backward: whether its graph is to be kept
            raise RuntimeError(
                "second derivatives (create_graph=True) do not go through this form of attention: "
                'use the definition, backend="reference"'
            )
        return backward(ctx, *gradients)

    return checked
