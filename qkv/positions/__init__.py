"""Position schemes. A new scheme is one file and one line here."""

from .alibi import Alibi as Alibi
from .base import Positions as Positions
from .base import Sizes as Sizes
from .base import incompatible_error as incompatible_error
from .base import register as register
from .base import schemes as schemes
from .learned import Learned as Learned
from .rope import Rope as Rope
from .shaw import Shaw as Shaw
from .sinusoidal import Sinusoidal as Sinusoidal
from .t5 import T5 as T5
