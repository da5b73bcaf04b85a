"""The task `detect`: find the objects of pictures."""

import warnings as python_warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.data import ShuffledBatches
from qkv.draw import TrainingReport
from qkv.errors import QkvError, QkvWarning, unknown_name_error
from qkv.inference import ObjectFinder, PredictOptions, Predictor
from qkv.models.detectors import DetectionBatch, Detector
from qkv.models.regions import uncovered_share
from qkv.records import require_fields
from qkv.tasks.base import ModelSizes, Preset, RunSummary, Task, register
from qkv.tasks.detection import presets
from qkv.tasks.detection.data import (
    SCENE_CLASSES,
    DetectOptions,
    make_scenes,
    read_pictures,
    read_test_pictures,
)
from qkv.tasks.detection.evaluation import detect_all, evaluate_detector, validation_score
from qkv.tasks.detection.pictures import PictureSet, ScenePictures, collate_pictures
from qkv.tasks.detection.predictor import BoxPredictor
from qkv.tasks.detection.proposals import prepare_proposals, propose
from qkv.tasks.detection.report import make_box_report
from qkv.tasks.detection.stages import stage_of, staged_schedule
from qkv.tasks.options import read_options
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

MAX_NUMBER = 2**31
"""Numbers of scenes that are generated while training are below this."""


@register("detect")
@dataclass(frozen=True)
class DetectTask(Task):
    """Find the objects of pictures: generated scenes, or your own pictures with boxes."""

    splits: dict[str, PictureSet]
    """"train", "valid" and "test"."""
    classes: tuple[str, ...]
    given: DetectOptions
    notes: tuple[str, ...] = ()
    told: set[str] = field(default_factory=set, compare=False)
    """Sentences that were printed already."""

    unit = "pictures"
    headline = "ap50"
    learning_rate_factors = (1.0,)  # a training takes minutes
    data_options = DetectOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "faster": presets.faster,
        "fast": presets.fast,
        "rcnn": presets.rcnn,
        "detr": presets.detr,
        "large": presets.large,
        "photos": presets.photos,
    }

    @classmethod
    def default_preset(cls, options: dict[str, Any]) -> str:
        """Return `photos` for pictures of your own."""
        return "photos" if options.get("train_file") else "faster"

    @classmethod
    def load(cls, options: dict[str, Any]) -> "DetectTask":
        """Read the pictures, or make the scenes."""
        given = read_options(DetectOptions, options)
        data = make_scenes(given) if given.train_file is None else read_pictures(given)
        return cls(data.splits, data.classes, given, data.notes)

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "DetectTask":
        """Build the task from its classes, without pictures."""
        require_fields(vocabulary, {"classes": list[str]})
        if not vocabulary["classes"]:
            raise ValueError("classes must have at least one name")
        return cls({}, tuple(vocabulary["classes"]), read_options(DetectOptions, options))

    def with_data(self) -> "DetectTask":
        """Return this task with the pictures that its options name."""
        loaded = type(self).load(asdict(self.given))
        if loaded.classes != self.classes:
            raise QkvError(f"the classes have changed since training: {', '.join(self.classes)} were learned")
        return loaded

    def with_test_file(self, path: str) -> "DetectTask":
        """Return this task with other pictures as its test split."""
        pictures = read_test_pictures(path, self.classes, self.given.picture_size, strict=self.given.strict)
        return replace(self, splits={**self.splits, "test": pictures})

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.given)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what had to be left out."""
        return self.notes

    def split_sizes(self) -> dict[str, int]:
        """Return the number of pictures by split."""
        return {name: len(pictures) for name, pictures in self.splits.items()}

    def vocabulary(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": list(self.classes)}

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the number of classes of the scenes, which is known without making them."""
        given = read_options(DetectOptions, options)
        if given.train_file is not None:
            return None
        note = f"{len(SCENE_CLASSES)} classes, as in the generated scenes; n is the number of proposals"
        return ModelSizes((len(SCENE_CLASSES),), None, _input_specs(given.picture_size), note)

    def sizes(self) -> tuple[int, ...]:
        """Return the number of classes."""
        return (len(self.classes),)

    @property
    def input_specs(self) -> tuple[str, ...]:
        """A square picture and n proposals."""
        return _input_specs(self.given.picture_size)

    def init_weights(self, model: nn.Module) -> None:
        """Fit the anchors to the training boxes; load the weights of a pretrained backbone."""
        assert isinstance(model, Detector)
        if not self.splits:  # a trained run is loaded: its weights follow
            return
        sizes = self.splits["train"].box_sizes()
        anchors = model.set_anchor_sizes(sizes)
        if anchors is not None:
            self._tell(describe_anchors(sizes, anchors))
        model.load_pretrained()

    def validate_model(self, model: nn.Module) -> None:
        """Raise unless the model is a detector."""
        if not isinstance(model, Detector):
            raise ValueError(f"the task detect needs a detector (rcnn, fast, faster, detr), got {type(model).__name__}")

    # --- training and evaluation ---

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Fit the training pictures; a detector with several stages trains one after the other."""
        detector = model if isinstance(model, Detector) else None
        stages = len(detector.stages) if detector is not None else 1
        if stages > 1 and settings.steps is None:
            raise ValueError("train.minutes cannot be divided into stages: give train.steps")
        if detector is not None and detector.needs_proposals and not self.given.train_scenes:
            raise ValueError(
                "external proposals need a fixed set of scenes: data.train_scenes must be at least 1, got 0"
            )
        data = _TrainingData(self, settings, needs_proposals=detector is not None and detector.needs_proposals)

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            assert isinstance(model, Detector)
            return validation_score(detect_all(model, self.splits["valid"], may_stop), len(self.classes))

        return Objective(
            model=model,
            order=lambda step: data.order(step, stages),
            collate=data.collate,
            count=lambda tensors: len(tensors[0]),
            loss=data.loss,
            validate=validate,
            schedule=lambda settings, step: staged_schedule(settings, step, stages),
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return COCO's figures, ceilings and the time of each part."""
        assert isinstance(model, Detector)
        if model.needs_proposals:
            self._prepare(split)
        return evaluate_detector(model, self._split(split), len(self.classes))

    def report(self, model: nn.Module, summary: RunSummary) -> TrainingReport:
        """Return the report with AP of each class, errors by reason and the worst pictures."""
        assert isinstance(model, Detector)
        pictures = self._split(self.default_split)
        result = detect_all(model, pictures, with_proposals=True)
        boxes = make_box_report(
            result.found,
            result.objects,
            self.classes,
            lambda index: pictures[index].picture.movedim(0, 2).numpy(),
            pictures.name,
            proposals=[regions.double().numpy() for regions in result.proposed] or None,
        )
        return replace(super().report(model, summary), boxes=boxes)

    def object_finder(self, model: nn.Module) -> ObjectFinder:
        """Return the detector with its classes."""
        assert isinstance(model, Detector)
        return ObjectFinder(model, self.classes, self.given.picture_size)

    def predictor(self, model: nn.Module, options: PredictOptions) -> Predictor:
        """Return the predictor of objects in image files."""
        options.reject_tokens(self.kind)
        return BoxPredictor(self.object_finder(model), options)

    def example_batch(self, settings: Settings) -> Tensors:
        """Return a batch of one picture with its proposals."""
        item = self.splits["train"][0]
        return tuple(collate_pictures([item], [propose(item.picture).boxes]))

    def run_example(self, model: nn.Module, batch: Tensors) -> bool:
        """Score the regions of one picture."""
        assert isinstance(model, Detector)
        example = DetectionBatch(*batch)
        dtype = next(model.parameters()).dtype
        model(example.pictures, example.proposals.to(dtype))
        return True

    def _tell(self, sentence: str) -> None:
        """Print a sentence once, however often a model is built."""
        if sentence not in self.told:
            self.told.add(sentence)
            python_warnings.warn(sentence, QkvWarning, stacklevel=3)

    def _prepare(self, split: str) -> None:
        pictures = self._split(split)
        prepare_proposals(pictures[index].picture for index in range(len(pictures)))

    def _split(self, split: str) -> PictureSet:
        if split not in self.splits:
            raise unknown_name_error("split", split, self.splits)
        return self.splits[split]


@dataclass(frozen=True)
class _TrainingData:
    """Batches of the training pictures. An id is stage * pictures + index, so that a batch knows its stage."""

    task: DetectTask
    settings: Settings
    needs_proposals: bool
    batches: ShuffledBatches = field(init=False)

    def __post_init__(self) -> None:
        train = self.task.splits["train"]
        object.__setattr__(self, "batches", ShuffledBatches(len(train), self.settings.batch_size, self.settings.seed))
        if self.needs_proposals:
            for split in ("train", "valid"):
                self.task._prepare(split)

    @property
    def is_endless(self) -> bool:
        return self.task.given.train_file is None and not self.task.given.train_scenes

    def order(self, step: int, stages: int) -> list[int]:
        if self.is_endless:
            size = self.settings.batch_size
            return [number % MAX_NUMBER for number in range(step * size, (step + 1) * size)]
        stage = stage_of(step, self.settings.steps, stages)
        return [stage * len(self.task.splits["train"]) + index for index in self.batches.batch(step)]

    def collate(self, ids: list[int]) -> Tensors:
        if self.is_endless:
            return (torch.tensor(ids),)
        pictures = self.task.splits["train"]
        stage, _ = divmod(ids[0], len(pictures))
        items = [pictures[index % len(pictures)] for index in ids]
        most = self.task.given.proposals
        proposals = [propose(item.picture).boxes[:most] for item in items] if self.needs_proposals else None
        return tuple(collate_pictures(items, proposals, stage))

    def loss(self, model: nn.Module, tensors: Tensors) -> Tensor:
        assert isinstance(model, Detector)
        batch = self._make_scenes(tensors[0]) if self.is_endless else DetectionBatch(*tensors)
        return model.loss(self.task.given.apply(batch) if model.training else batch)

    def _make_scenes(self, numbers: Tensor) -> DetectionBatch:
        """Generate the scenes with these numbers on their device."""
        train = self.task.splits["train"]
        assert isinstance(train, ScenePictures)
        made = train.scenes.examples(train.digits, train.seed, "train", numbers)
        extents = torch.full((len(numbers), 2), train.scenes.size, device=numbers.device)
        proposals = torch.zeros(len(numbers), 0, 4, device=numbers.device)
        return DetectionBatch(*made[:1], extents, *made[1:], proposals, torch.zeros((), dtype=torch.long))


def _input_specs(size: int) -> tuple[str, ...]:
    return f"float[1,3,{size},{size}]", "float[1,n,4]"


def describe_anchors(sizes: Tensor, anchors: Tensor) -> str:
    """Return the anchors as a sentence, with the share of training boxes that they do not fit."""
    listed = ", ".join(f"{width:.0f} x {height:.0f}" for width, height in anchors.tolist())
    share = uncovered_share(sizes, anchors)
    hint = f"; {share:.1%} of the training boxes have an IoU below 0.5 with each of them: raise model.anchors"
    return f"anchors (width x height): {listed}{hint if share else ''}"
