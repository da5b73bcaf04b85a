"""Operations of region-based object detectors: boxes, NMS, RoI pooling, anchors, matching."""

from .anchors import anchor_grid as anchor_grid
from .anchors import fit_anchor_sizes as fit_anchor_sizes
from .anchors import size_iou as size_iou
from .anchors import uncovered_share as uncovered_share
from .assignment import match_one_to_one_batched as match_one_to_one_batched
from .boxes import box_area as box_area
from .boxes import clip_boxes as clip_boxes
from .boxes import decode_boxes as decode_boxes
from .boxes import encode_boxes as encode_boxes
from .boxes import generalized_iou as generalized_iou
from .boxes import iou as iou
from .matching import match_by_iou as match_by_iou
from .matching import match_one_to_one as match_one_to_one
from .matching import sample_labels as sample_labels
from .nms import nms as nms
from .nms import nms_by_definition as nms_by_definition
from .roi import roi_align as roi_align
from .roi import roi_align_by_definition as roi_align_by_definition
from .roi import roi_pool as roi_pool
from .roi import roi_pool_by_definition as roi_pool_by_definition
from .segmentation import segment as segment
from .segmentation import segment_by_definition as segment_by_definition
from .selective_search import selective_search as selective_search
