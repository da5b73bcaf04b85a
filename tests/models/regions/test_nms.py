"""NMS: the fixed point is the greedy result, exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.models.regions import nms, nms_by_definition

from .test_boxes import random_boxes


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("groups", [None, 3])
def test_fixed_point_is_the_greedy_result(threshold, groups):
    g = torch.Generator().manual_seed(7)
    boxes = random_boxes(2, 83, seed=1)
    scores = torch.rand(2, 83, generator=g)
    labels = None if groups is None else torch.randint(0, groups, (2, 83), generator=g)
    expected = nms_by_definition(boxes, scores, threshold, groups=labels)
    assert torch.equal(nms(boxes, scores, threshold, groups=labels), expected)
    assert 0 < expected.sum() < expected.numel() or threshold == 1.0


@given(
    st.lists(st.tuples(*[st.integers(0, 6)] * 4, st.integers(0, 3), st.integers(0, 1)), max_size=14),
    st.sampled_from([0.2, 0.5]),
)
def test_ties_empty_boxes_and_no_boxes(rows, threshold):
    x, y, w, h, scores, groups = torch.tensor(rows, dtype=torch.float64).reshape(-1, 6).T
    boxes = torch.stack([x, y, x + w, y + h], 1)
    expected = nms_by_definition(boxes, scores, threshold, groups=groups.long())
    assert torch.equal(nms(boxes, scores, threshold, groups=groups.long()), expected)


def test_a_chain_needs_many_rounds():
    """Each box overlaps only the next one: every second box is kept."""
    left = torch.arange(9) * 6.0
    boxes = torch.stack([left, torch.zeros(9), left + 10, torch.full((9,), 10.0)], 1)
    scores = torch.linspace(1, 0.1, 9)
    assert nms(boxes, scores, 0.2).tolist() == [True, False] * 4 + [True]


def test_padding_is_never_kept_and_suppresses_nothing():
    boxes = random_boxes(1).expand(3, 4)
    assert nms(boxes, torch.tensor([-torch.inf, 0.5, 0.4]), 0.5).tolist() == [False, True, False]


def test_bad_input_threshold():
    with pytest.raises(ValueError, match="threshold must be in 0..1, got 1.5"):
        nms(random_boxes(3), torch.rand(3), 1.5)
