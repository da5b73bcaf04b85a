"""The cost that a module declares for a call: integers by arithmetic, at any length in no time."""

from collections.abc import Mapping
from typing import Any

from qkv.cost.meta_run import ModuleCall
from qkv.cost.record import Cost, Span


def declares_cost(call: ModuleCall) -> bool:
    """Return whether the module declares a cost for such inputs: one or two sequences."""
    shapes = [given.shape for given in call.inputs]
    return hasattr(call.module, "cost") and len(shapes) <= 2 and all(len(shape) >= 2 for shape in shapes)


def declared_cost(call: ModuleCall, sizes: Mapping[str, int], element_bytes: int = 4) -> Cost:
    """Return the declared cost of a call, for which `declares_cost` holds."""
    module: Any = call.module
    *source, target = (given.resolve_shape(sizes) for given in call.inputs)
    span = Span(
        target[0],
        target[1],
        context=source[0][1] if source else None,
        causal=bool(call.options.get("causal")),
        element_bytes=element_bytes,
    )
    cost: Cost = module.cost(span)
    return cost
