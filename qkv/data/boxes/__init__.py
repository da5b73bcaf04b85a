"""Pictures with labeled boxes: readers of Pascal VOC XML, COCO JSON and YOLO text."""

from .coco import read_coco as read_coco
from .folder import read_boxes as read_boxes
from .record import BadBox as BadBox
from .record import BoxedImage as BoxedImage
from .record import BoxFolder as BoxFolder
from .record import LabeledBox as LabeledBox
from .voc import read_voc as read_voc
from .yolo import read_yolo as read_yolo
