"""Matching: labels by IoU, samples, and the Hungarian algorithm against scipy."""

import pytest
import torch

from qkv.models.regions import match_by_iou, match_one_to_one, sample_labels
from qkv.models.regions.matching import IGNORED, NEGATIVE, POSITIVE


def strips(*widths):
    """Boxes of height 10 that start at 0; the IoU of two is the ratio of their widths."""
    return torch.tensor([[[0.0, 0.0, float(width), 10.0] for width in widths]])


def test_labels_by_iou():
    candidates, objects = strips(10, 8, 6, 4, 2), strips(10)
    labels, nearest = match_by_iou(candidates, objects, torch.tensor([[True]]), high=0.7, low=0.5)
    assert labels.tolist() == [[POSITIVE, POSITIVE, IGNORED, NEGATIVE, NEGATIVE]]
    assert nearest.tolist() == [[0] * 5]


def test_every_object_keeps_its_best_candidate():
    candidates, objects = strips(10, 3), strips(10, 1)
    real = torch.tensor([[True, True]])
    assert match_by_iou(candidates, objects, real, high=0.7, low=0.35)[0].tolist() == [[POSITIVE, NEGATIVE]]
    labels, nearest = match_by_iou(candidates, objects, real, high=0.7, low=0.35, keep_best=True)
    assert labels.tolist() == [[POSITIVE, POSITIVE]]
    assert nearest.tolist() == [[0, 1]]


def test_padding_and_difficult_objects():
    candidates, objects = strips(10, 5), strips(10, 5)
    labels, _ = match_by_iou(candidates, objects, torch.tensor([[True, False]]), high=0.7, low=0.6)
    assert labels.tolist() == [[POSITIVE, NEGATIVE]]
    real, difficult = torch.tensor([[True, True]]), torch.tensor([[False, True]])
    labels, _ = match_by_iou(candidates, objects, real, high=0.7, low=0.6, is_difficult=difficult)
    assert labels.tolist() == [[POSITIVE, IGNORED]]


def test_a_picture_without_objects_is_negative():
    for objects, real in (
        (torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.bool)),
        (strips(9), torch.tensor([[False]])),
    ):
        labels, _ = match_by_iou(strips(10, 5), objects, real, high=0.7, low=0.3, keep_best=True)
        assert labels.tolist() == [[NEGATIVE, NEGATIVE]]


def test_samples_have_the_asked_share():
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, (3, 200), generator=g)
    labels[1, labels[1] == POSITIVE] = NEGATIVE
    labels[1, :2] = POSITIVE
    taken = sample_labels(labels, 32, 0.25, torch.rand(3, 200, generator=g))
    assert taken.sum(1).tolist() == [32, 32, 32]
    assert [(taken[i] & (labels[i] == POSITIVE)).sum().item() for i in range(3)] == [8, 2, 8]
    assert not (taken & (labels == IGNORED)).any()


@pytest.mark.parametrize(("queries", "objects"), [(1, 1), (6, 6), (16, 5), (20, 0), (30, 29)])
def test_assignment_has_the_least_cost(queries, objects):
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        # integers give ties
        cost = (
            torch.randint(-5, 5, (queries, objects), generator=g).double()
            if seed % 2
            else torch.randn(queries, objects, generator=g, dtype=torch.double)
        )
        found = match_one_to_one(cost)
        assert len(set(found.tolist())) == objects
        rows, columns = optimize.linear_sum_assignment(cost.numpy())
        assert cost[found, torch.arange(objects)].sum().item() == pytest.approx(
            cost.numpy()[rows, columns].sum(), abs=1e-12
        )


def test_bad_input_assignment():
    with pytest.raises(ValueError, match="queries=2 must be at least objects=3"):
        match_one_to_one(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="cost must be finite"):
        match_one_to_one(torch.tensor([[float("nan")]]))
