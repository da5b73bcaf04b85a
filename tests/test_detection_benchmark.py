"""benchmarks.detection_cards on a few generated photographs; torchvision is a stand-in."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks import detection_cards, detection_peer
from qkv.models.detectors.lite0 import Lite0Backbone

XML = """<annotation><filename>{name}.png</filename><size><width>48</width><height>32</height><depth>3</depth></size>
<object><name>{label}</name><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>24</xmax><ymax>28</ymax></bndbox></object>
</annotation>"""


@pytest.fixture
def cards(tmp_path):
    for split, count in (("train", 6), ("test", 2)):
        (tmp_path / split).mkdir()
        for number in range(count):
            name, label = f"{split}{number}", ("ace", "king")[number % 2]
            Image.new("RGB", (48, 32), (number * 30, 90, 120)).save(tmp_path / split / f"{name}.png")
            (tmp_path / split / f"{name}.xml").write_text(XML.format(name=name, label=label))
    return tmp_path


class StandIn(nn.Module):
    """As FasterRCNN is called: losses while training, then a dictionary for each picture."""

    def __init__(self, backbone, num_classes, **options):
        super().__init__()
        self.backbone, self.options = backbone, options
        self.score = nn.Linear(backbone.out_channels, num_classes)

    def forward(self, pictures, targets=None):
        scores = [self.score(self.backbone(picture[None]).mean((2, 3))) for picture in pictures]
        if targets is None:
            found = {"boxes": torch.tensor([[5.0, 5.0, 24.0, 28.0]]), "scores": torch.tensor([0.9])}
            return [{**found, "labels": score[:, 1:].argmax(-1) + 1} for score in scores]
        assert all((t["boxes"][:, :2] < t["boxes"][:, 2:]).all() and (t["labels"] >= 1).all() for t in targets)
        goals = [target["labels"][0] for target in targets]
        return {"loss": nn.functional.cross_entropy(torch.cat(scores), torch.stack(goals))}


@pytest.fixture
def stand_in(monkeypatch):
    parts = {
        "torchvision": {"__spec__": SimpleNamespace()},
        "torchvision.models.detection": {"FasterRCNN": StandIn},
        "torchvision.models.detection.rpn": {"AnchorGenerator": lambda *sizes: sizes},
        "torchvision.ops": {"MultiScaleRoIAlign": lambda *options: options},
    }
    for name, values in parts.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(detection_cards, "SIZE", 48)
    monkeypatch.setattr(detection_cards, "BATCH", 2)
    monkeypatch.setattr(Lite0Backbone, "load_pretrained", lambda self: None)


def test_held_out_pictures_are_not_trained_on(cards):
    whole, held = detection_cards.read_data(cards, 0), detection_cards.read_data(cards, 2)
    assert (len(whole.train), len(whole.test), len(held.train), len(held.test)) == (6, 2, 4, 2)
    trained, tested = ({image.path for image in part.images} for part in (held.train, held.test))
    assert trained | tested == {image.path for image in whole.train.images}
    assert whole.classes == held.classes == ("ace", "king")


@pytest.mark.filterwarnings("ignore:anchors")
def test_both_are_trained_evaluated_and_timed(cards, stand_in, monkeypatch, tmp_path):
    out = tmp_path / "result.json"
    settings = ["model.hidden_dim=16", "model.anchors=2", "train.minutes=null", "train.steps=2"]
    words = [word for setting in settings for word in ("--set", setting)]
    monkeypatch.setattr(
        sys,
        "argv",
        ["x", "--data", str(cards), "--out", str(out), "--seconds", "0.3", "--device", "cpu", "--peer", *words],
    )
    detection_cards.main()
    result = json.loads(out.read_text())
    assert list(result["systems"]) == ["ours", "peer"]
    for record in result["systems"].values():
        assert record["steps"] >= 1
        assert record["ms_per_picture"] > 0
        assert record["ap50_interval"][0] <= record["ap50"] <= record["ap50_interval"][1]
    assert str(cards) not in result["command"]


def test_peer_flips_boxes_with_the_picture():
    picture = torch.zeros(3, 4, 10)
    picture[:, 1:3, 2:5] = 0.5
    always = SimpleNamespace(random=lambda: 0.0, uniform=lambda low, high: 1.0)
    flipped, target = detection_peer._augment(picture, {"boxes": torch.tensor([[2.0, 1.0, 5.0, 3.0]])}, always)
    x1, y1, x2, y2 = target["boxes"][0].long().tolist()
    assert (flipped[:, y1:y2, x1:x2] == 0.5).all()
    assert flipped.sum() == picture.sum()
