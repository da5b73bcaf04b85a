"""Object detectors: R-CNN, Fast R-CNN, Faster R-CNN and DETR behind one interface."""

from .base import Detection as Detection
from .base import DetectionBatch as DetectionBatch
from .base import Detector as Detector
from .base import ScoredRegions as ScoredRegions
from .detr import DETR as DETR
from .detr import DETRConfig as DETRConfig
from .fast import FastConfig as FastConfig
from .fast import FastRCNN as FastRCNN
from .faster import FasterConfig as FasterConfig
from .faster import FasterRCNN as FasterRCNN
from .rcnn import RCNN as RCNN
from .rcnn import RCNNConfig as RCNNConfig
from .region_detector import RegionDetector as RegionDetector
