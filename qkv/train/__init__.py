"""Training: one loop for every model."""

from .loop import Loop as Loop
from .loop import Machine as Machine
from .loop import Progress as Progress
from .objective import Objective as Objective
from .run import Checkpoint as Checkpoint
from .run import Run as Run
from .run import create as create
from .settings import Settings as Settings
from .settings import learning_rate as learning_rate
from .settings import linear_rate as linear_rate
from .signals import Interrupted as Interrupted
