"""Augmentation: boxes move with their pixels."""

import pytest
import torch

from qkv.models.detectors import DetectionBatch
from qkv.tasks.detection.augment import Augmentation


def bright_square(x1, y1, x2, y2, extent=(32, 48)):
    """One gray picture, padded at the right, with a white square that is also its object and its proposal."""
    picture = torch.full((1, 3, 32, 64), 127, dtype=torch.uint8)
    picture[:, :, y1:y2, x1:x2] = 255
    box = torch.tensor([[[x1, y1, x2, y2]]], dtype=torch.float32)
    return DetectionBatch(
        picture, torch.tensor([extent]), box, torch.tensor([[2]]), torch.tensor([[False]]), box.clone(), torch.tensor(0)
    )


def bounds_of_white(picture):
    rows, columns = (picture[0, 0] > 191).nonzero(as_tuple=True)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [{"flip": True}, {"zoom": 1.5}, {"flip": True, "zoom": 1.3}])
def test_box_and_proposal_move_with_the_pixels(seed, options):
    torch.manual_seed(seed)
    moved = Augmentation(**options).apply(bright_square(18, 10, 30, 20))
    assert moved.classes.item() == 2
    torch.testing.assert_close(
        moved.boxes[0, 0], torch.tensor(bounds_of_white(moved.pictures)).float(), atol=1.0, rtol=0
    )
    assert torch.equal(moved.boxes, moved.proposals)


def test_flip_mirrors_half_of_the_pictures_inside_of_their_padding():
    torch.manual_seed(0)
    left = [Augmentation(flip=True).apply(bright_square(4, 10, 10, 20)).boxes[0, 0, 0].item() for _ in range(40)]
    assert set(left) == {4.0, 38.0}


def test_object_that_leaves_the_picture_is_no_longer_one():
    torch.manual_seed(0)
    found = [Augmentation(zoom=8.0).apply(bright_square(0, 0, 6, 6)) for _ in range(60)]
    gone = [batch for batch in found if batch.classes.item() == -1]
    assert gone
    assert all(not batch.boxes.any() for batch in gone)


def test_colors_change_pixels_and_no_box():
    torch.manual_seed(0)
    batch = bright_square(18, 10, 30, 20)
    for options in ({"color": 0.3}, {"recolor": True}):
        changed = [Augmentation(**options).apply(batch) for _ in range(4)]
        assert any(not torch.equal(one.pictures, batch.pictures) for one in changed)
        assert all(torch.equal(one.boxes, batch.boxes) for one in changed)


def test_without_options_nothing_changes():
    batch = bright_square(18, 10, 30, 20)
    assert Augmentation().apply(batch) is batch


@pytest.mark.parametrize(
    ("options", "message"), [({"zoom": 0.5}, "zoom must be from 1"), ({"color": 1.0}, "color must")]
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**options)
