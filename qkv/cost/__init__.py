"""What a computation costs: records of integers, and a counter to check them with."""

from .count import UncountedError as UncountedError
from .count import count_multiplications as count_multiplications
from .measure import Measurement as Measurement
from .measure import measure as measure
from .record import Cost as Cost
from .record import Shape as Shape
from .record import causal_pairs as causal_pairs
