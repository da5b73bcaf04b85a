"""The task `detect`: splits, batches, stages, training, evaluation."""

import json

import pytest
import torch

from qkv.errors import QkvError, QkvWarning
from qkv.models.detectors import Detection, DetectionBatch, Detector, FasterConfig, FasterRCNN
from qkv.tasks import DetectTask
from qkv.tasks.detection.pictures import LabeledPicture, collate_pictures, fitted_size
from qkv.tasks.detection.stages import stage_ends, stage_of, staged_schedule
from qkv.train import Compute, Loop, Run, Settings
from tests.tasks.detection.scenes import TINY, tiny_model, tiny_task
from tests.train.loops import stop_at

FAMILIES = ("rcnn", "fast", "faster")


class Oracle(Detector):
    """Finds what it was told, with falling scores."""

    def __init__(self, answers):
        super().__init__()
        self.answers, self.nothing = list(answers), torch.nn.Parameter(torch.zeros(1))

    def loss(self, batch):
        raise NotImplementedError

    features = regions = loss

    def detect(self, pictures, extents, proposals, clock=lambda part: None):
        boxes, classes = next(
            (boxes, classes)
            for picture, boxes, classes in self.answers
            if torch.equal(picture, self._cut(pictures, extents))
        )
        return [Detection(boxes, torch.linspace(1, 0.5, len(boxes)), classes)]

    def _cut(self, pictures, extents):
        height, width = extents[0].tolist()
        return pictures[0, :, :height, :width]


def write_pictures(folder, count, labels=("cat", "dog"), size=(40, 30)):
    """Pictures in Pascal VOC's format, each with one object."""
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = f"{number:02}"
        image.new("RGB", size, (10 * number % 256, 80, 120)).save(folder / f"{name}.png")
        (folder / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.png</filename><size><width>{size[0]}</width><height>{size[1]}</height>"
            f"<depth>3</depth></size><object><name>{labels[number % len(labels)]}</name><bndbox><xmin>5</xmin>"
            f"<ymin>6</ymin><xmax>{15 + number}</xmax><ymax>20</ymax></bndbox></object></annotation>"
        )
    return folder


# --- data ---


def test_scenes_are_the_same_in_every_process():
    first, second = (DetectTask.load({**TINY}).splits["train"] for _ in range(2))
    for index in (0, 7):
        assert all(torch.equal(a, b) for a, b in zip(first[index], second[index], strict=True))
    assert not torch.equal(first[0].picture, tiny_task().splits["valid"][0].picture)


def test_batch_pads_pictures_and_objects():
    item = LabeledPicture(
        torch.full((3, 20, 33), 9, dtype=torch.uint8),
        torch.tensor([[1.0, 2, 3, 4]]),
        torch.tensor([5]),
        torch.tensor([True]),
    )
    other = LabeledPicture(
        torch.full((3, 40, 10), 8, dtype=torch.uint8),
        torch.zeros(0, 4),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0).bool(),
    )
    batch = collate_pictures([item, other], [torch.ones(2, 4), torch.ones(1, 4)], stage=2)
    assert batch.pictures.shape == (2, 3, 64, 64)
    assert batch.extents.tolist() == [[20, 33], [40, 10]]
    assert batch.pictures[0, :, :20, :33].unique().tolist() == [9]
    assert batch.pictures[0, :, 20:].unique().tolist() == [127]
    assert batch.classes.tolist() == [[5], [-1]]
    assert batch.proposals.tolist() == [[[1.0] * 4] * 2, [[1.0] * 4, [0.0] * 4]]
    assert batch.stage.item() == 2


def test_files_are_resized_with_their_boxes(tmp_path):
    task = DetectTask.load({"train_file": str(write_pictures(tmp_path / "p", 10)), "size": 80})
    pictures = [task.splits[split][index] for split in task.splits for index in range(len(task.splits[split]))]
    assert {tuple(item.picture.shape) for item in pictures} == {(3, 60, 80)}
    assert {tuple(item.boxes[0, :2].tolist()) for item in pictures} == {(8.0, 10.0)}  # VOC counts pixels from 1
    assert task.classes == ("cat", "dog")


def test_held_out_pictures_are_not_trained_on(tmp_path):
    task = DetectTask.load({"train_file": str(write_pictures(tmp_path / "p", 20))})
    names = {split: {found.name(index) for index in range(len(found))} for split, found in task.splits.items()}
    assert task.split_sizes() == {"train": 16, "test": 2, "valid": 2}
    assert len(set.union(*names.values())) == 20


def test_subfolders_are_splits(tmp_path):
    for name, count in (("train", 8), ("test", 3)):
        write_pictures(tmp_path / "p" / name, count)
    task = DetectTask.load({"train_file": str(tmp_path / "p")})
    assert task.split_sizes() == {"train": 7, "test": 3, "valid": 1}


def test_longer_side_has_the_size():
    assert fitted_size(30, 40, 80) == (60, 80)
    assert fitted_size(1, 4000, 100) == (1, 100)


def test_bad_input_class_of_the_test_pictures(tmp_path):
    write_pictures(tmp_path / "train", 8)
    write_pictures(tmp_path / "test", 2, labels=("cow",))
    with pytest.raises(QkvError, match="class 'cow', but the training pictures have cat, dog"):
        DetectTask.load({"train_file": str(tmp_path / "train"), "test_file": str(tmp_path / "test")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size must be 0, or from 32"),
        ({"valid_scenes": 0}, "valid_scenes"),
        ({"held_out": 0.9}, "held_out"),
    ],
)
def test_bad_input_options(options, message):
    with pytest.raises(ValueError, match=message):
        DetectTask.load(options)


def test_bad_input_folder_with_one_picture(tmp_path):
    with pytest.raises(QkvError, match="too few to hold some out"):
        DetectTask.load({"train_file": str(write_pictures(tmp_path / "p", 1))})


# --- stages ---


def test_stages_cover_all_steps():
    assert stage_ends(100, 3) == [90, 95, 100]
    assert [stage_of(step, 100, 3) for step in (0, 89, 90, 94, 95, 99)] == [0, 0, 1, 1, 2, 2]
    assert stage_of(99, 100, 1) == 0
    assert stage_ends(4, 3) == [2, 3, 4]


def test_learning_rate_starts_again_in_every_stage():
    settings = Settings(steps=100, warmup=10, learning_rate=1.0)
    rates = [staged_schedule(settings, step, 3) for step in range(100)]
    assert max(rates[:90]) == max(rates[90:95]) == 1.0
    assert rates[89] < 0.01
    assert rates[94] < 0.15


def test_batch_knows_its_stage():
    task = tiny_task()
    objective = task.objective(tiny_model("rcnn", task), Settings(steps=20, batch_size=2))
    stages = [DetectionBatch(*objective.collate(objective.order(step))).stage.item() for step in range(20)]
    assert stages == [0] * 18 + [1] + [2]


def test_bad_input_minutes_with_stages():
    task = tiny_task()
    with pytest.raises(ValueError, match="give train.steps"):
        task.objective(tiny_model("rcnn", task), Settings(minutes=1.0, steps=None))


# --- training and evaluation ---


@pytest.mark.parametrize(("name", "moments"), [("rcnn", (3, 8, 9)), ("fast", (3,)), ("faster", (3,))])
def test_resumed_in_every_stage_the_weights_are_the_same_to_the_last_bit(tmp_path, name, moments):
    settings = Settings(steps=10, batch_size=2, validate_every=5, warmup=1)

    def loop(folder):
        folder.mkdir(exist_ok=True)
        task = tiny_task(zoom=1.2, color=0.1)
        torch.manual_seed(0)
        return Loop(task.objective(tiny_model(name, task), settings), settings, Run(folder), Compute(), lambda _: None)

    whole = loop(tmp_path / "whole")
    whole.train()
    for moment in moments:
        folder = tmp_path / str(moment)
        stop_at(moment, loop(folder))
        last = loop(folder)
        last.resume()
        assert last.progress.step == moment
        last.train()
        state = last.model.state_dict()
        assert all(torch.equal(state[key], value) for key, value in whole.model.state_dict().items())


def test_perfect_detections_have_an_average_precision_of_one():
    task = tiny_task()
    pictures = task.splits["test"]
    items = [pictures[index] for index in range(len(pictures))]
    right = Oracle((item.picture, item.boxes, item.classes) for item in items)
    wrong = Oracle((item.picture, item.boxes, (item.classes + 1) % 10) for item in items)
    assert task.evaluate(right, "test")["ap50"] == pytest.approx(1.0)
    assert task.evaluate(right, "test")["mean_ap"] == pytest.approx(1.0)
    assert task.evaluate(wrong, "test")["ap50"] < 0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_metrics_name_the_ceilings_and_the_time_of_each_part(name):
    task = tiny_task()
    metrics = task.evaluate(tiny_model(name, task), "test")
    parts = [metrics[f"{part}_ms"] for part in ("proposals", "backbone", "regions", "nms")]
    assert metrics["ms_per_picture"] == pytest.approx(sum(parts))
    assert all(value >= 0 for value in parts)
    assert metrics["proposals_ms"] > 0
    assert 0 <= metrics["proposal_recall_70"] <= metrics["proposal_recall_50"] <= 1
    assert 0 <= metrics["true_box_accuracy"] <= 1
    assert metrics["stages"] == (3 if name == "rcnn" else 1)
    json.dumps(metrics)


def test_anchors_are_printed_once():
    task = DetectTask.load({**TINY})
    with pytest.warns(QkvWarning, match=r"^anchors \(width x height\): \d+ x \d+, "):
        task.init_weights(FasterRCNN(FasterConfig(anchors=3), 10))
    task.init_weights(FasterRCNN(FasterConfig(anchors=3), 10))  # a second warning would be an error


def test_new_scenes_at_every_step():
    task = tiny_task(train_scenes=0)
    model = tiny_model("faster", task)
    objective = task.objective(model, Settings(steps=10, batch_size=3))
    assert objective.order(2) == [6, 7, 8]
    assert objective.loss(model, objective.collate([6, 7, 8])).isfinite()


def test_bad_input_external_proposals_of_new_scenes():
    task = tiny_task(train_scenes=0)
    with pytest.raises(ValueError, match="data.train_scenes must be at least 1, got 0"):
        task.objective(tiny_model("fast", task), Settings(steps=10))


def test_restored_task_needs_no_pictures():
    task = tiny_task()
    restored = DetectTask.restore(task.options, json.loads(json.dumps(task.vocabulary())))
    assert restored.classes == task.classes
    assert restored.with_data().split_sizes() == task.split_sizes()
