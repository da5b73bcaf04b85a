"""What a computation costs: formulas and integers, and a counter to check them with.

What needs formulas is loaded when it is first used: attention itself does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .count import Operation as Operation
from .count import UncountedError as UncountedError
from .count import count_multiplications as count_multiplications
from .inputs import Input as Input
from .measure import Measurement as Measurement
from .measure import measure as measure
from .parts import convolution as convolution
from .parts import learned as learned
from .parts import linear as linear
from .parts import recurrent as recurrent
from .record import Cost as Cost
from .record import Shape as Shape
from .record import Span as Span
from .record import causal_pairs as causal_pairs

if TYPE_CHECKING:
    from .formula import crossing as crossing
    from .formula import evaluate as evaluate
    from .formula import interpolate as interpolate
    from .formula import write as write
    from .formula import write_latex as write_latex
    from .report import CONVENTION as CONVENTION
    from .report import Quantity as Quantity
    from .report import Report as Report
    from .report import of as of
    from .ticks import Tick as Tick
    from .ticks import verify as verify

_LATER = {
    "formula": ("crossing", "evaluate", "interpolate", "write", "write_latex"),
    "report": ("CONVENTION", "Quantity", "Report", "of"),
    "ticks": ("Tick", "verify"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"qkv.cost.{module}"), name)
    raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}")
