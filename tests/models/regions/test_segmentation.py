"""Graph segmentation: the fast form gives the regions of the definition, exactly."""

import numpy as np
import pytest

from qkv.models.regions.segmentation import segment, segment_by_definition


def scene(seed, height=47, width=61, noise=6.0):
    rng = np.random.default_rng(seed)
    x = np.full((height, width, 3), rng.integers(0, 255, 3), dtype=float)
    for _ in range(9):
        y1, x1 = rng.integers(0, height - 5), rng.integers(0, width - 5)
        x[y1 : y1 + rng.integers(3, 20), x1 : x1 + rng.integers(3, 20)] = rng.integers(0, 255, 3)
    return np.clip(x + rng.normal(0, noise, x.shape), 0, 255).astype(np.uint8)


def same_regions(a, b):
    """Whether two label maps name the same regions, whatever their numbers."""
    pairs = np.unique(np.stack([a.ravel(), b.ravel()]), axis=1)
    return pairs.shape[1] == len(np.unique(a)) == len(np.unique(b))


@pytest.mark.parametrize("scale", [10.0, 100.0, 400.0])
@pytest.mark.parametrize("noise", [0.0, 6.0, 40.0])
def test_fast_form_equals_definition(scale, noise):
    for seed in range(4):
        picture = scene(seed, noise=noise)
        (found,), expected = segment(picture, scale), segment_by_definition(picture, scale)
        assert same_regions(found, expected)
        assert len(np.unique(found)) > 1


def test_flat_halves_are_two_regions():
    picture = np.zeros((20, 30, 3), dtype=np.uint8)
    picture[:, 15:] = 200
    (found,) = segment(picture, 50.0, sigma=0.0)
    assert found.max() == 1
    assert (found[:, :15] == found[0, 0]).all()
    assert (found[:, 15:] == found[0, -1]).all()


def test_a_larger_scale_gives_fewer_regions_and_none_is_small():
    picture = scene(1, noise=20.0)
    few, many = segment(picture, 500.0, 20.0, min_size=30)
    assert few.max() < many.max()
    assert np.bincount(many.ravel()).min() >= 30


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_tiny_pictures(shape):
    (found,) = segment(np.zeros((*shape, 3), dtype=np.uint8), 100.0)
    assert found.max() == 0
