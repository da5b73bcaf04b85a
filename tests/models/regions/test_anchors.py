"""Anchors: k-means on known clusters, coverage, and the grid."""

import pytest
import torch

from qkv.models.regions import anchor_grid, fit_anchor_sizes, size_iou, uncovered_share


def test_k_means_finds_clusters():
    g = torch.Generator().manual_seed(0)
    truth = torch.tensor([[8.0, 8.0], [40.0, 20.0], [60.0, 120.0]])
    sizes = (truth[:, None] * (1 + 0.1 * torch.rand(3, 50, 2, generator=g))).flatten(0, 1)
    found = fit_anchor_sizes(sizes[torch.randperm(150, generator=g)], 3)
    torch.testing.assert_close(found, truth * 1.05, rtol=0.02, atol=0)


def test_more_anchors_never_fit_worse():
    g = torch.Generator().manual_seed(1)
    sizes = torch.rand(200, 2, generator=g) * 50 + 4
    fit = [size_iou(sizes, fit_anchor_sizes(sizes, n)).amax(1).mean().item() for n in (1, 3, 9)]
    assert fit[0] < fit[1] < fit[2]
    assert fit[2] > 0.7


def test_uncovered_share_counts_boxes_without_an_anchor():
    sizes = torch.tensor([[10.0, 10.0], [10.0, 4.0], [100.0, 100.0], [9.0, 12.0]])
    assert uncovered_share(sizes, torch.tensor([[10.0, 10.0]])) == 0.5  # IoU 1, 0.4, 0.01, 90/118


def test_grid_is_centered_on_cells():
    grid = anchor_grid(torch.tensor([[4.0, 2.0], [8.0, 8.0]]), 2, 3, 16)
    assert grid.shape == (12, 4)
    assert grid[:2].tolist() == [[6.0, 7.0, 10.0, 9.0], [4.0, 4.0, 12.0, 12.0]]
    assert grid[2 * (1 * 3 + 2)].tolist() == [38.0, 23.0, 42.0, 25.0]  # row 1, column 2


def test_bad_input_sizes():
    with pytest.raises(ValueError, match="sizes is empty"):
        fit_anchor_sizes(torch.zeros(0, 2), 3)
    with pytest.raises(ValueError, match="sizes must be above 0, got 0"):
        fit_anchor_sizes(torch.tensor([[3.0, 0.0]]), 1)
