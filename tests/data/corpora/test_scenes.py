"""Scenes: a pure function of (seed, split, number), with tight boxes."""

import pytest
import torch

from qkv.data import LabeledExamples, Scenes
from qkv.data.corpora.scenes import MAX_DIGITS, MAX_IOU, _pieces, _render, _Stream, _visible_share
from qkv.models.regions import iou


@pytest.fixture(scope="module")
def digits():
    """Filled rectangles of several sizes, one class per size: their boxes are known."""
    images = torch.zeros(10, 1, 28, 28, dtype=torch.uint8)
    for label in range(10):
        images[label, :, 4 : 10 + label, 6 : 24 - label] = 255
    return LabeledExamples(images, torch.arange(10))


def make(digits, numbers, seed=0, split="train", size=64):
    return Scenes(size).examples(digits, seed, split, torch.tensor(numbers))


def test_a_scene_depends_on_its_number_alone(digits):
    together, alone = make(digits, [3, 7, 2**31]), make(digits, [7])
    for many, one in zip(together, alone, strict=True):
        assert torch.equal(many[1:2], one)
    assert not torch.equal(together.pictures[0], together.pictures[1])


def test_seed_and_split_change_the_scene(digits):
    first = make(digits, [0])
    assert not torch.equal(first.pictures, make(digits, [0], seed=1).pictures)
    assert not torch.equal(first.pictures, make(digits, [0], split="valid").pictures)


def test_numbers_of_digits_and_overlaps(digits):
    found = make(digits, list(range(64)))
    real = found.classes >= 0
    assert set(real.sum(1).tolist()) == set(range(1, MAX_DIGITS + 1))
    assert (found.boxes[~real] == 0).all()
    assert ((found.boxes[real] >= 0) & (found.boxes[real] <= 64)).all()
    overlaps = iou(found.boxes, found.boxes) * (real[:, :, None] & real[:, None])
    # boxes of drawn ink differ from planned ones by a pixel at most
    assert overlaps.tril(-1).max() < MAX_IOU + 0.12


def test_sizes_and_classes(digits):
    found = make(digits, list(range(64)), size=128)
    real = found.classes >= 0
    assert set(found.classes[real].tolist()) == set(range(10))
    width, height = (found.boxes[..., 2:] - found.boxes[..., :2])[real].unbind(-1)
    label = found.classes[real]
    # a digit of class c is 18 - c wide and 6 + c high; the side is 16 to 56 pixels of 28
    scale = width / (18 - label)
    assert (scale > 0.4).all()
    assert (scale < 2.4).all()
    assert ((height / (6 + label)) / scale).log().abs().max() < 0.5


def test_box_is_tight():
    """One square of ink, drawn at a known place."""
    image = torch.zeros(1, 1, 28, 28)
    image[..., 7:21, 7:21] = 1.0
    drawn = _render(image, torch.tensor([[[10.0, 20.0]]]), torch.tensor([[28.0]]), 64)[0, 0]
    assert drawn[27:41, 17:31].min() == 1.0
    assert drawn.sum() == pytest.approx(14 * 14)


def test_visible_share():
    levels = torch.zeros(1, 2, 8, 8)
    levels[0, 0, :4, :4] = 1.0
    levels[0, 1, :4, :2] = 1.0
    assert _visible_share(levels).tolist() == [[0.5, 1.0]]


def test_pieces_have_less_than_half_the_ink(digits):
    whole = LabeledExamples(digits.inputs[:1], digits.labels[:1])
    levels, _ = _pieces(_Stream(5, torch.arange(32)), whole, 64)
    side = levels.flatten(2).sum(-1)
    assert (side > 0).all()
    # the ink of a whole digit at the smallest side, 8 of 28 pixels, up to 28 of 28
    whole_ink = (digits.inputs[0] > 0).sum() / 28**2
    assert (side < 0.5 * whole_ink * 28**2).all()


def test_bad_input_size():
    with pytest.raises(ValueError, match="size must be at least 32, got 8"):
        Scenes(8)


def test_every_object_has_an_area(digits):
    """At 32 pixels some digits have no ink left: they are no objects."""
    scenes = Scenes(32).examples(digits, 0, "train", torch.arange(100))
    real = scenes.classes >= 0
    sides = scenes.boxes[..., 2:] - scenes.boxes[..., :2]
    assert (sides[real] >= 1).all()
    assert not sides[~real].any()
