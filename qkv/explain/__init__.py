"""What happened inside a model, as plain data."""

from .alignment import Alignment as Alignment
from .alignment import alignment as alignment
from .gradients import LayerGradient as LayerGradient
from .gradients import gradient_by_depth as gradient_by_depth
from .gradients import gradient_norms as gradient_norms
from .gradients import jacobian_norms as jacobian_norms
from .watch import Call as Call
from .watch import watch as watch
