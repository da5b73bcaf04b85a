"""The cost of a computation: formulas, exact integers, and a counter to check them.

Modules that need sympy are loaded on first use, so that importing attention stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .counter import Operation as Operation
from .counter import UncountedError as UncountedError
from .counter import count_multiplications as count_multiplications
from .input_spec import Input as Input
from .layers import convolution as convolution
from .layers import linear as linear
from .layers import parameters_only as parameters_only
from .layers import recurrent as recurrent
from .measure import Measurement as Measurement
from .measure import measure as measure
from .record import Cost as Cost
from .record import Shape as Shape
from .record import Span as Span
from .record import causal_pairs as causal_pairs

if TYPE_CHECKING:
    from .checks import Check as Check
    from .checks import verify as verify
    from .polynomial import crossings as crossings
    from .polynomial import evaluate as evaluate
    from .polynomial import format_formula as format_formula
    from .polynomial import format_latex as format_latex
    from .polynomial import interpolate as interpolate
    from .report import CONVENTION as CONVENTION
    from .report import CostReport as CostReport
    from .report import Quantity as Quantity
    from .report import analyze as analyze

_LAZY = {
    "checks": ("Check", "verify"),
    "polynomial": ("crossings", "evaluate", "format_formula", "format_latex", "interpolate"),
    "report": ("CONVENTION", "CostReport", "Quantity", "analyze"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"qkv.cost.{module}"), name)
    raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}")
