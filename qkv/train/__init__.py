"""Training: one loop for every model."""

from .checkpoint import Checkpoint as Checkpoint
from .compute import Compute as Compute
from .loop import Loop as Loop
from .objective import Objective as Objective
from .progress import Progress as Progress
from .run import Run as Run
from .run import create_run as create_run
from .settings import Settings as Settings
from .settings import cosine_schedule as cosine_schedule
from .settings import linear_schedule as linear_schedule
from .signals import Interrupted as Interrupted
