"""Failures of a training in several processes: who failed, why, and that the others end, too."""

from .causes import is_lost_connection as is_lost_connection
from .pulse import Pulse as Pulse
from .watchdog import Watchdog as Watchdog
