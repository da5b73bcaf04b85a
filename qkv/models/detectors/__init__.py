"""Object detectors: R-CNN, Fast R-CNN, Faster R-CNN and DETR behind one interface."""

from .base import Detection as Detection
from .base import DetectionBatch as DetectionBatch
from .base import Detector as Detector
from .base import ScoredRegions as ScoredRegions
