"""R-CNN, Fast R-CNN, Faster R-CNN: who proposes, who classifies, and what each loss trains."""

import pytest
import torch

from qkv.models import families, family
from qkv.models.detectors import (
    RCNN,
    DetectionBatch,
    FastConfig,
    FasterConfig,
    FasterRCNN,
    FastRCNN,
    RCNNConfig,
    ScoredRegions,
)
from qkv.models.detectors.base import select_with_nms
from qkv.models.detectors.region_detector import sample_regions
from qkv.models.regions import iou, nms_by_definition

CLASSES = 3
MODELS = {"rcnn": (RCNN, RCNNConfig), "fast": (FastRCNN, FastConfig), "faster": (FasterRCNN, FasterConfig)}


def make(name, **settings):
    torch.manual_seed(0)
    model, config = MODELS[name]
    return model(config(hidden_dim=16, samples=8, **settings), CLASSES)


def make_batch(stage=0, height=64, width=96):
    """Two pictures with a bright square each, the second also with a difficult object and padding at the right."""
    torch.manual_seed(1)
    pictures = torch.randint(90, 110, (2, 3, height, width), dtype=torch.uint8)
    boxes = torch.tensor([[[8.0, 8, 24, 28], [0, 0, 0, 0]], [[30.0, 20, 50, 44], [4, 40, 14, 50]]])
    for picture, box in zip(pictures, boxes[:, 0], strict=True):
        x1, y1, x2, y2 = box.int().tolist()
        picture[:, y1:y2, x1:x2] = 250
    corner = torch.rand(2, 20, 2) * 40
    proposals = torch.cat([corner, corner + 6 + 20 * torch.rand(2, 20, 2)], -1)
    proposals[1, 15:] = 0
    proposals[:, :3] = boxes[:, :1] + 2 * torch.rand(2, 3, 4)
    return DetectionBatch(
        pictures,
        torch.tensor([[64, 96], [64, 60]]),
        boxes,
        torch.tensor([[1, -1], [2, 0]]),
        torch.tensor([[False, False], [False, True]]),
        proposals,
        torch.tensor(stage),
    )


@pytest.mark.parametrize("name", MODELS)
def test_loss_trains_every_parameter_in_some_stage(name):
    model = make(name)
    trained = set()
    for stage in range(len(model.stages)):
        model.zero_grad()
        model.loss(make_batch(stage)).backward()
        trained |= {key for key, value in model.named_parameters() if value.grad is not None and value.grad.any()}
    expected = {key for key, value in model.named_parameters() if value.numel()}
    assert trained == expected


@pytest.mark.parametrize("stage", [1, 2])
def test_external_classifier_sends_no_gradient_to_the_network(stage):
    model = make("rcnn")
    model.loss(make_batch(stage)).backward()
    touched = {key for key, value in model.named_parameters() if value.grad is not None}
    assert touched == ({"svm.weight", "svm.bias"} if stage == 1 else {"boxes.nothing"})


def test_box_stage_changes_the_boxes_and_nothing_else():
    model = make("rcnn")
    batch = make_batch(2)
    near = batch.boxes[:, :1] + torch.tensor([1.0, -1, 2, 1])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.loss(batch._replace(proposals=near))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"boxes.weights", "boxes.squares", "boxes.products"}


@pytest.mark.parametrize("name", MODELS)
def test_picture_without_objects_has_a_finite_loss(name):
    model = make(name)
    batch = make_batch()
    for stage in range(len(model.stages)):
        empty = batch._replace(
            boxes=torch.zeros(2, 1, 4), classes=torch.full((2, 1), -1), difficult=torch.zeros(2, 1, dtype=torch.bool)
        )
        loss = model.loss(empty._replace(stage=torch.tensor(stage)))
        loss.backward()
        assert loss.isfinite()
    assert all(value.grad is None or value.grad.isfinite().all() for value in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_boxes_stay_inside_of_the_picture_without_its_padding(name):
    model = make(name).eval()
    model.min_score = 0.0
    batch = make_batch()
    found = model.detect(batch.pictures, batch.extents, batch.proposals)
    for detection, (height, width) in zip(found, batch.extents.tolist(), strict=True):
        assert len(detection.boxes)
        assert detection.boxes.min() >= 0
        assert detection.boxes[:, 0::2].max() <= width
        assert detection.boxes[:, 1::2].max() <= height
        assert (detection.scores.diff() <= 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_detections_do_not_depend_on_the_batch(name):
    model = make(name).eval()
    model.min_score = 0.0
    batch = make_batch()
    both = model.detect(batch.pictures, batch.extents, batch.proposals)
    for i in range(2):
        (one,) = model.detect(batch.pictures[i : i + 1], batch.extents[i : i + 1], batch.proposals[i : i + 1])
        torch.testing.assert_close(one.scores, both[i].scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rcnn", "fast"])
def test_external_proposals_decide_the_regions(name):
    """Without proposals nothing is found; a padded proposal is never one."""
    model = make(name).eval()
    model.min_score = 0.0
    batch = make_batch()
    assert model.needs_proposals
    (none,) = model.detect(batch.pictures[:1], batch.extents[:1], torch.zeros(1, 5, 4))
    assert len(none.boxes) == 0


def test_own_proposals_need_none_from_outside():
    model = make("faster").eval()
    batch = make_batch()
    features = model.features(batch.pictures, batch.proposals)
    first = model.propose(features, batch.extents, torch.zeros(2, 0, 4))
    assert not model.needs_proposals
    assert first.shape == (2, model.config.proposals, 4)
    assert torch.equal(first, model.propose(features, batch.extents, batch.proposals))


def test_proposals_of_a_picture_survive_its_own_nms():
    model = make("faster").eval()
    batch = make_batch()
    proposed = model.propose(model.features(batch.pictures, batch.proposals), batch.extents, batch.proposals)[0]
    proposed = proposed[(proposed[:, 2:] > proposed[:, :2]).all(1)]
    overlap = iou(proposed, proposed).fill_diagonal_(0)
    assert len(proposed) > 1
    assert overlap.max() <= 0.7


def test_samples_hold_true_boxes_and_no_difficult_ones():
    batch = make_batch()
    sampled = sample_regions(batch, torch.zeros(2, 0, 4), 4, 0.5)
    assert torch.equal(sampled.boxes[sampled.positive], batch.boxes[:, 0])
    assert sampled.classes[sampled.positive].tolist() == [1, 2]
    assert sampled.used.sum() == 2  # padding and the difficult object are neither positive nor negative


def test_select_is_nms_within_each_class():
    generator = torch.Generator().manual_seed(3)
    corner = torch.rand(1, 30, 1, 2, generator=generator) * 20
    boxes = torch.cat([corner, corner + 8], -1).expand(-1, -1, CLASSES, -1)
    scores = torch.rand(1, 30, CLASSES, generator=generator)
    padded = select_with_nms(ScoredRegions(boxes, scores), 0.2, candidates=1000)
    (found,) = padded.split(padded.counts.tolist())
    expected = []
    for label in range(CLASSES):
        own = scores[0, :, label].masked_fill(scores[0, :, label] < 0.2, -torch.inf)
        kept = nms_by_definition(boxes[0, :, label], own, 0.5)
        expected += [(round(score, 6), label) for score in own[kept].tolist()]
    assert [(round(s, 6), c) for s, c in zip(found.scores.tolist(), found.classes.tolist(), strict=True)] == sorted(
        expected, reverse=True
    )


def test_anchors_are_those_of_the_training_boxes():
    model = make("faster", anchors=2)
    sizes = torch.tensor([[10.0, 20], [10, 20], [40, 30], [40, 30]])
    assert model.set_anchor_sizes(sizes).tolist() == [[10, 20], [40, 30]]
    assert model.state_dict()["rpn.sizes"].tolist() == [[10, 20], [40, 30]]


@pytest.mark.parametrize("name", MODELS)
def test_families_build_from_settings(name):
    assert name in families
    chosen = family(name)
    assert isinstance(chosen.build(chosen.configure({"hidden_dim": 8}), CLASSES), MODELS[name][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool": 0}, "pool must be at least 1, got 0"),
        ({"positive_share": 0.0}, "positive_share must be above 0"),
        ({"backbone": "smal"}, "did you mean 'small'"),
        ({"pooling": "mean"}, "unknown pooling 'mean'"),
    ],
)
def test_bad_input_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        FastRCNN(FastConfig(**settings), CLASSES)
