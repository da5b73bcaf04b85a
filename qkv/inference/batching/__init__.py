"""Continuous batching: generations enter and leave a running batch between decoding steps."""

from .batcher import Batcher as Batcher
from .batcher import BatcherStatistics as BatcherStatistics
from .generation import Generation as Generation
from .limits import Limits as Limits
from .limits import QueueFullError as QueueFullError
