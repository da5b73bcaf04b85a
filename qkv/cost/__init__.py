"""What a computation costs: formulas and integers, and a counter to check them with.

What needs formulas is loaded when it is first used: attention itself does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .counter import Operation as Operation
from .counter import UncountedError as UncountedError
from .counter import count_multiplications as count_multiplications
from .input_spec import Input as Input
from .layers import convolution as convolution
from .layers import learned as learned
from .layers import linear as linear
from .layers import recurrent as recurrent
from .measure import Measurement as Measurement
from .measure import measure as measure
from .record import Cost as Cost
from .record import Shape as Shape
from .record import Span as Span
from .record import causal_pairs as causal_pairs

if TYPE_CHECKING:
    from .polynomial import crossing as crossing
    from .polynomial import evaluate as evaluate
    from .polynomial import interpolate as interpolate
    from .polynomial import write as write
    from .polynomial import write_latex as write_latex
    from .report import CONVENTION as CONVENTION
    from .report import Quantity as Quantity
    from .report import Report as Report
    from .report import of as of
    from .verify import Tick as Tick
    from .verify import verify as verify

_LATER = {
    "polynomial": ("crossing", "evaluate", "interpolate", "write", "write_latex"),
    "report": ("CONVENTION", "Quantity", "Report", "of"),
    "verify": ("Tick", "verify"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"qkv.cost.{module}"), name)
    raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}")
