"""Detection by a CUDA graph: what it records equals an ordinary detection, on any device; replaying needs a GPU."""

import pytest
import torch

from qkv.models.detectors import cuda_graph
from qkv.models.detectors.detr import DETR, DETRConfig
from qkv.models.detectors.faster import FasterConfig, FasterRCNN
from qkv.models.regions import nms
from qkv.models.regions.nms import fixed_rounds, nms_by_definition

CLASSES = 3
MODELS = {
    "faster": lambda: FasterRCNN(FasterConfig(backbone="lite0-random", hidden_dim=8, proposals=11), CLASSES),
    "faster, max": lambda: FasterRCNN(FasterConfig(hidden_dim=8, proposals=11, pooling="max"), CLASSES),
    "detr": lambda: DETR(DETRConfig(dim=32, heads=2, hidden_dim=16, queries=5), CLASSES),
}
gpu = pytest.mark.gpu


def make(name, device="cpu"):
    torch.manual_seed(0)
    model = MODELS[name]().to(device).eval()
    model.min_score = 0.001  # untrained models are sure of nothing
    return model


def draw(seed=0, device="cpu", shape=(64, 48)):
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8, generator=generator)
    return pictures.to(device), torch.tensor([[64, 48], [50, 37]], device=device), torch.zeros(2, 0, 4, device=device)


def assert_equal(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert len(other.boxes)
        assert torch.equal(own.classes, other.classes)
        torch.testing.assert_close(own.boxes, other.boxes, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(own.scores, other.scores, rtol=1e-4, atol=1e-5)


def chain(count):
    """Return boxes in a row, each of which overlaps the next by IoU 0.6: every other one is kept, one per round."""
    left = torch.arange(count) * 2.5
    return torch.stack([left, torch.zeros(count), left + 10, torch.full((count,), 10.0)], 1), -torch.arange(
        count
    ).float()


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_what_is_recorded_equals_a_detection(name):
    model, inputs = make(name), draw()
    with fixed_rounds(20) as settled:
        padded = model.detect_padded(*inputs)
    assert all(settled)
    assert_equal(padded.split(padded.counts.tolist()), model.detect(*inputs))


def test_enough_rounds_settle_and_too_few_say_so():
    boxes, scores = chain(16)
    with fixed_rounds(20) as settled:
        kept = nms(boxes, scores, 0.5)
        assert torch.equal(kept, nms_by_definition(boxes, scores, 0.5))
    assert kept.tolist() == [True, False] * 8
    with fixed_rounds(4) as unsettled:
        nms(boxes, scores, 0.5)
    assert [bool(x) for x in settled + unsettled] == [True, False]
    assert torch.equal(nms(boxes, scores, 0.5), kept)  # outside of the block, as many rounds as it takes


def test_only_faster_with_alignment_is_recorded():
    assert {name: make(name).can_record_detection for name in MODELS} == {
        "faster": True, "faster, max": False, "detr": False,
    }  # fmt: skip


@gpu
def test_replays_equal_a_detection_of_the_same_picture():
    model = make("faster", "cuda")
    for seed in range(4):  # ordinary, recorded, replayed twice
        inputs = draw(seed, "cuda")
        assert_equal(model.detect(*inputs), model.detect(*inputs, clock=lambda part: None))
    (recorded,) = cuda_graph._graphs[model].values()
    assert recorded is not None


@gpu
def test_a_detection_is_not_overwritten_by_the_next():
    model = make("faster", "cuda")
    for _ in range(2):
        found = model.detect(*draw(1, "cuda"))
    before = [x.clone() for x in found[0]]
    model.detect(*draw(2, "cuda"))
    assert all(torch.equal(own, kept) for own, kept in zip(found[0], before, strict=True))


@gpu
def test_new_weights_are_seen():
    model, inputs = make("faster", "cuda"), draw(0, "cuda")
    for _ in range(3):
        before = model.detect(*inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = model.detect(*inputs)
    assert_equal(after, model.detect(*inputs, clock=lambda part: None))
    assert not torch.equal(after[0].scores, before[0].scores)


@gpu
def test_too_few_rounds_fall_back(monkeypatch):
    monkeypatch.setattr(cuda_graph, "NMS_ROUNDS", 1)
    model, inputs = make("faster", "cuda"), draw(0, "cuda")
    for _ in range(3):
        found = model.detect(*inputs)
    assert_equal(found, model.detect(*inputs, clock=lambda part: None))


@gpu
def test_old_shapes_are_dropped():
    model = make("faster", "cuda")
    for width in range(32, 32 + 2 * (cuda_graph.MAX_GRAPHS + 3), 2):
        inputs = draw(0, "cuda", (64, width))
        for _ in range(2):
            model.detect(*inputs)
    assert len(cuda_graph._graphs[model]) == cuda_graph.MAX_GRAPHS
