"""What happened inside a model, as plain data."""

from .alignment import Alignment as Alignment
from .alignment import alignment as alignment
from .watch import Call as Call
from .watch import watch as watch
