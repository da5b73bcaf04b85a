"""Selective search: boxes of regions by hand, and objects found among clutter."""

import numpy as np
import pytest

from qkv.metrics.detection import box_iou
from qkv.models.regions import selective_search
from qkv.models.regions.selective_search import merge_regions

from .test_segmentation import scene


def test_boxes_of_regions_and_of_their_merges():
    labels = np.zeros((8, 10), dtype=np.int64)
    labels[2:5, 3:6] = 1
    labels[2:5, 6:9] = 2
    picture = np.zeros((8, 10, 3), dtype=np.uint8)
    picture[labels == 1], picture[labels == 2] = 100, 101  # the same bin: 1 and 2 merge first
    expected = [[0, 0, 10, 8], [3, 2, 6, 5], [6, 2, 9, 5], [3, 2, 9, 5], [0, 0, 10, 8]]
    assert merge_regions(picture, labels).tolist() == expected


def test_one_region_gives_one_box():
    assert selective_search(np.zeros((9, 12, 3), dtype=np.uint8)).tolist() == [[0, 0, 12, 9]]


def test_objects_are_proposed():
    """Squares of one color on noise: all are found, the whole picture comes first, no box twice."""
    rng = np.random.default_rng(0)
    picture = rng.integers(90, 110, (80, 90, 3)).astype(np.uint8)
    truth = np.array([[5, 8, 25, 30], [50, 10, 80, 35], [30, 45, 60, 75]])
    for x1, y1, x2, y2 in truth:
        picture[y1:y2, x1:x2] = rng.integers(150, 255, 3)
    found = selective_search(picture)
    assert found[0].tolist() == [0, 0, 90, 80]
    assert len(np.unique(found, axis=0)) == len(found)
    assert box_iou(truth.astype(float), found.astype(float)).max(1).min() > 0.8
    assert (found[:, 2:] - found[:, :2]).min() >= 4


def test_it_is_a_function_of_the_picture():
    picture = scene(3)
    assert np.array_equal(selective_search(picture), selective_search(picture.copy()))


def test_bad_input_picture():
    with pytest.raises(ValueError, match=r"picture must be uint8 \(height, width, 3\), got float64 \(4, 4\)"):
        selective_search(np.zeros((4, 4)))
