"""Backbones that are trained from scratch: sizes of the map, and a stem that does not see color."""

import pytest
import torch

from qkv.models.detectors.backbone import ContrastStem, make_backbone


@pytest.mark.parametrize("name", ["small", "contrast", "wide", "wide-contrast"])
def test_the_map_has_a_cell_per_stride(name):
    backbone = make_backbone(name)
    assert backbone(torch.zeros(2, 3, 40, 51)).shape == (2, backbone.channels, 20, 26)


def test_contrast_is_the_same_for_swapped_and_inverted_colors():
    torch.manual_seed(0)
    stem = ContrastStem(8).double()
    pictures = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    expected = stem(pictures)
    assert expected.std() > 0.5
    for changed in (pictures[:, [2, 0, 1]], -pictures):
        torch.testing.assert_close(stem(changed), expected, rtol=0, atol=1e-12)


def test_the_gradient_of_a_picture_without_contrast_is_finite():
    stem = ContrastStem(8)
    pictures = torch.zeros(1, 3, 16, 16, requires_grad=True)
    stem(pictures).square().sum().backward()
    assert pictures.grad.isfinite().all()
    assert stem.filters.weight.grad.isfinite().all()
