"""DETR: its loss, its queries, and what padding does."""

import dataclasses

import pytest
import torch

from qkv.cost import count_multiplications
from qkv.data import mnist
from qkv.data.corpora.scenes import Scenes
from qkv.metrics.detection import Detections, Objects, coco_evaluate
from qkv.models import family
from qkv.models.detectors import DETR, DetectionBatch, DETRConfig
from qkv.models.detectors.query_decoder import Tokens, spread_points
from qkv.models.detectors.set_loss import Targets, corners, targets_of
from qkv.models.detectors.token_loss import nearest_objects, token_places

TINY = DETRConfig(dim=32, heads=2, hidden_dim=32, layers=1, decoder_layers=2, queries=12, groups=2)
CLASSES = 10


def scenes(count, size=64):
    made = Scenes(size).examples(mnist("small")["train"], 0, "train", torch.arange(count))
    extents = torch.full((count, 2), size)
    return DetectionBatch(*made[:1], extents, *made[1:], torch.zeros(count, 0, 4), torch.tensor(0))


@pytest.fixture(scope="module")
def batch():
    return scenes(4)


def predict(model, batch, groups=1):
    return model.decoder(model.encoder(model.features(batch.pictures, batch.proposals), batch.extents), groups)


def build(seed=0, **changes):
    torch.manual_seed(seed)
    return DETR(dataclasses.replace(TINY, **changes), CLASSES)


def shake(model, scale=0.1):
    """Move all weights from their initial values; zero weights would hide what depends on them."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=g))
    return model


def test_gradients_reach_every_parameter(batch):
    model = shake(build())
    model.loss(batch).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.parametrize("kind", ["elu", "taylor", "linear", "additive"])
def test_any_kind_in_the_encoder_and_in_cross_attention(kind, batch):
    model = build(attention=kind, cross=kind)
    assert {block.attention.attention.kind for block in model.encoder.blocks} == {kind}
    assert {block.cross.attention.kind for block in model.decoder.blocks} == {kind}
    assert {block.attention.attention.kind for block in model.decoder.blocks} == {"softmax"}
    loss = model.loss(batch)
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_half_precision_keeps_boxes_in_float32(batch):
    model = shake(build(), 0.02)
    exact = model.loss(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = predict(model, batch)
        loss = model.loss(batch)
    assert found.boxes.dtype == found.logits.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)
    double = build().double()
    assert predict(double, batch).boxes.dtype == torch.double
    assert double.loss(batch).item() == pytest.approx(build().loss(batch).item(), rel=1e-4)


def test_order_of_objects_does_not_change_the_loss(batch):
    model = shake(build())
    order = torch.tensor([3, 5, 1, 0, 4, 2])
    moved = batch._replace(
        boxes=batch.boxes[:, order], classes=batch.classes[:, order], difficult=batch.difficult[:, order]
    )
    assert model.loss(moved).item() == pytest.approx(model.loss(batch).item(), rel=1e-5)


def test_loss_is_the_sum_over_pictures(batch):
    model = shake(build())
    parts = [DetectionBatch(*(x[i : i + 1] for x in batch[:-1]), batch.stage) for i in range(4)]
    assert model.loss(batch).item() == pytest.approx(sum(model.loss(part).item() for part in parts), rel=1e-4)


@pytest.mark.parametrize("objects", [0, 6])
def test_pictures_without_objects_have_a_finite_loss(objects, batch):
    empty = batch._replace(
        boxes=torch.zeros(4, objects, 4),
        classes=torch.full((4, objects), -1),
        difficult=torch.zeros(4, objects, dtype=torch.bool),
    )
    model = build()
    loss = model.loss(empty)
    loss.backward()
    assert 0 < loss.item() < 10
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_a_difficult_object_counts_neither_way(batch):
    """The query matched to it has no loss: neither its box nor its class changes anything."""
    model = shake(build())
    only = batch._replace(difficult=torch.ones_like(batch.difficult))
    absent = batch._replace(classes=torch.full_like(batch.classes, -1), boxes=torch.zeros_like(batch.boxes))
    assert 0 < model.loss(only).item() < model.loss(absent).item()
    elsewhere = only._replace(classes=torch.where(only.classes >= 0, (only.classes + 1) % CLASSES, -1))
    assert model.loss(elsewhere).isfinite()


def test_hidden_tokens_have_no_influence():
    """Given the same features inside of the picture, what is in the padding changes nothing."""
    model = shake(build()).eval()
    g = torch.Generator().manual_seed(0)
    inside = torch.randn(1, 64, 16, 8, generator=g)
    model.encoder.project = torch.nn.Conv2d(64, 32, 1)  # no mixing of neighbors before the mask
    model.encoder.stride = 4
    padded = torch.cat(
        [torch.cat([inside, 9 * torch.randn(1, 64, 16, 5, generator=g)], 3), torch.ones(1, 64, 3, 13)], 2
    )
    extents = torch.tensor([[62, 32]])
    alone = model.regions(inside, extents, torch.zeros(1, 0, 4))
    among = model.regions(padded, extents, torch.zeros(1, 0, 4))
    torch.testing.assert_close(among, alone, rtol=1e-4, atol=1e-4)


def test_padding_hardly_moves_boxes(batch):
    """The small backbone normalizes over the whole map, so padding changes features: boxes move by under a pixel."""
    model = shake(build(), 0.02).eval()
    pictures = torch.nn.functional.pad(batch.pictures, (0, 24, 0, 8))
    nothing = batch.proposals
    alone = model.regions(model.features(batch.pictures, nothing), batch.extents, nothing)
    padded = model.regions(model.features(pictures, nothing), batch.extents, nothing)
    assert (alone.boxes - padded.boxes).abs().max() < 1
    assert (alone.scores - padded.scores).abs().max() < 0.05
    blind = model.regions(model.features(pictures, nothing), torch.tensor([[72, 88]] * 4), nothing)
    assert (alone.boxes - blind.boxes).abs().max() > 1  # without the extents they move


def test_only_the_first_group_is_used_after_training(batch):
    model = shake(build())
    used = model.eval().loss(batch).item()
    with torch.no_grad():
        model.decoder.content[12:].neg_()
    assert model.loss(batch).item() == used
    changed = model.train().loss(batch).item()
    with torch.no_grad():
        model.decoder.content[12:].neg_()
    assert model.loss(batch).item() != changed


def test_groups_do_not_see_each_other(batch):
    model = shake(build())
    together, alone = predict(model, batch, 2), predict(model, batch, 1)
    torch.testing.assert_close(together.boxes[:, :, :12], alone.boxes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.logits[:, :, :12], alone.logits, rtol=1e-4, atol=1e-4)


def test_detections_are_sorted_and_inside(batch):
    model = shake(build()).eval()
    model.min_score = 0.0
    found = model.detect(batch.pictures, batch.extents, batch.proposals)
    assert len(found) == 4
    for one in found:
        assert len(one.boxes) == 100  # of 12 queries with 10 classes
        assert (one.scores.diff() <= 0).all()
        assert one.boxes.min() >= 0
        assert one.boxes.max() <= 64


def test_every_object_has_a_token_and_the_smaller_one_wins():
    """8 x 8 tokens of 8 pixels; the second object lies inside of the first, the third is less than a token."""
    line = ((torch.arange(8) + 0.5) / 8)[None]
    tokens = Tokens(torch.zeros(1, 64, 4), line, line, torch.ones(1, 64, dtype=torch.bool))
    boxes = torch.tensor([[[0.5, 0.5, 0.9, 0.9], [0.56, 0.56, 0.3, 0.3], [0.12, 0.12, 0.02, 0.02], [0, 0, 0, 0]]])
    real = torch.tensor([[True, True, True, False]])
    matched, which = nearest_objects(tokens, token_places(tokens), Targets(boxes, torch.zeros(1, 4).long(), real, real))
    grid = torch.where(matched, which, -1).view(8, 8)
    assert grid[0, 0] == grid[1, 1] == 2
    assert grid[4, 4] == 1
    assert grid[2, 3] == grid[3, 5] == 0
    assert grid[7, 0] == grid[0, 7] == -1
    assert (grid == 0).sum() == 15
    assert (grid == 1).sum() == 1


def test_tokens_learn_only_in_training(batch):
    model, without = shake(build()), shake(build(token_loss=0.0))
    assert without.token_head is None
    without.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("token_head")})
    assert model.loss(batch) > without.loss(batch)
    assert model.eval().loss(batch).item() == without.eval().loss(batch).item()


def test_hidden_tokens_learn_nothing(batch):
    model = shake(build())
    tokens = model.encoder(model.features(batch.pictures, batch.proposals), batch.extents)
    hidden = tokens._replace(is_real=torch.zeros_like(tokens.is_real))
    assert model.token_head.loss(tokens, targets_of(batch)) > 0
    assert model.token_head.loss(hidden, targets_of(batch)) == 0


def test_first_boxes_cover_the_picture():
    points = spread_points(64)
    cells = {(int(x * 4), int(y * 4)) for x, y in points.tolist()}
    assert len(cells) == 16


def test_corners():
    assert corners(torch.tensor([[0.5, 0.4, 0.2, 0.4]]))[0].tolist() == pytest.approx([0.4, 0.2, 0.6, 0.6])


def test_loss_reads_nothing_back(batch):
    """On the meta device a host read raises, so a CUDA graph can capture the loss."""
    model = build().to("meta")
    loss = model.loss(DetectionBatch(*(x.to("meta") for x in batch)))
    loss.backward()
    assert loss.shape == ()


def multiplications(model, batch):
    with count_multiplications() as counted, torch.no_grad():
        model.regions(model.features(batch.pictures[:1], batch.proposals[:1]), batch.extents[:1], batch.proposals[:1])
    return counted.total


def test_multiplications_can_be_counted(batch):
    """Count what one decoder layer adds: projections, two attentions, feed-forward, the focus and the heads."""
    dim, queries, tokens = 32, 12, 64
    per_query = 6 * dim**2 + 2 * dim * queries + 2 * dim * tokens + 2 * dim * 32 + dim * 8
    heads = 3 * dim**2 + 2 * dim**2 + dim * (4 + CLASSES)
    layer = queries * (per_query + heads) + 2 * tokens * dim**2
    counts = [multiplications(build(decoder_layers=layers).eval(), batch) for layers in (2, 3)]
    assert counts[1] - counts[0] == layer


def test_bad_input_sizes(batch):
    with pytest.raises(ValueError, match="queries=5 must be at least the 6 objects of a picture"):
        build(queries=5).loss(batch)
    with pytest.raises(ValueError, match="dim=36 must be a multiple of 4"):
        DETRConfig(dim=36, heads=2)
    with pytest.raises(ValueError, match="stride must be a power of 2, got 12"):
        DETRConfig(stride=12)
    with pytest.raises(ValueError, match="token_loss must be 0 or more, got -1"):
        DETRConfig(token_loss=-1.0)
    with pytest.raises(ValueError, match="queries must be at least 1, got 0"):
        DETRConfig(queries=0)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        DETR(TINY, 0)
    with pytest.raises(ValueError, match="it takes the sizes"):
        family("detr").build(TINY, 3, 4)


@pytest.mark.slow
@pytest.mark.training
def test_learns_8_scenes():
    torch.manual_seed(0)
    data = scenes(8)
    model = DETR(dataclasses.replace(TINY, dim=64, heads=4, hidden_dim=128, queries=16, groups=1), CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        (model.loss(data) / 8).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = model.eval().detect(data.pictures, data.extents, data.proposals)
    detections = [
        Detections(one.boxes.double().numpy(), one.classes.numpy(), one.scores.double().numpy()) for one in found
    ]
    objects = [
        Objects(boxes[real].double().numpy(), classes[real].numpy(), difficult[real].numpy())
        for boxes, classes, difficult, real in zip(*data[2:5], data.classes >= 0, strict=True)
    ]
    assert coco_evaluate(detections, objects, CLASSES).scores.ap50 > 0.9
