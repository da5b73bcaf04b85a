"""Classification: examples with one label each, the loss, accuracy and confusion matrix."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import LabeledExamples, ShuffledBatches, read_points
from qkv.data.files.points import LAST
from qkv.draw import Mistakes
from qkv.errors import QkvError, unknown_name_error
from qkv.inference import PredictOptions
from qkv.inference.progress import track
from qkv.metrics import accuracy, confusion_matrix
from qkv.records import require_fields
from qkv.tasks.base import ConfusionMatrix, Task
from qkv.tasks.classification.files import read_test_images
from qkv.tasks.classification.predictor import ClassPredictor
from qkv.tasks.classification.report import make_mistakes
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

PRESCALE_BELOW = 2**28
"""Training inputs up to this many bytes are scaled once, larger ones batch by batch."""
EVAL_BATCH_SIZE = 1000
_VOCABULARY = {"classes": list[str], "shape": list[int], "mean": list[float], "deviation": list[float]}


@dataclass(frozen=True)
class Scale:
    """Standardization: a model gets (input - mean) / deviation, with one mean for all values or one per column."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, inputs: Tensor, *, columns: bool = False) -> "Scale":
        """Return the scale that gives these inputs mean 0 and deviation 1, per column or over all."""
        table = inputs.double().flatten(1) if columns else inputs.double().reshape(-1, 1)
        lowest, highest = table.aminmax(dim=0)
        constant = lowest == highest  # its deviation may not round to 0
        mean, deviation = table.mean(0), table.std(0, correction=0)
        return cls(
            tuple(torch.where(constant, lowest, mean).tolist()), tuple(deviation.masked_fill(constant, 1).tolist())
        )

    def apply(self, inputs: Tensor) -> Tensor:
        """Return scaled inputs in float32; float64 inputs are scaled in float64, so that large values stay distinct."""
        if len(self.mean) == 1:  # in place: a batch of images is too large to allocate three times
            exact = torch.float64 if inputs.dtype == torch.float64 else torch.float32
            return inputs.to(exact, copy=True).sub_(self.mean[0]).div_(self.deviation[0]).float()
        mean, deviation = (torch.tensor(row, dtype=torch.float64) for row in (self.mean, self.deviation))
        return ((inputs.double() - mean) / deviation).float()


class LabeledBatch(NamedTuple):
    """Scaled inputs (batch, ...) and labels (batch,)."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ClassificationTask(Task):
    """Predict the class of an example."""

    splits: dict[str, LabeledExamples]
    """"train", "valid" and "test"."""
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of one example."""
    scale: Scale
    given: dict[str, Any]
    """All data options."""
    notes: tuple[str, ...] = ()
    """Sentences about what was read."""

    unit = "examples"

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "ClassificationTask":
        """Build classes, shape and scale without data."""
        require_fields(vocabulary, _VOCABULARY)
        columns = prod(vocabulary["shape"])
        if min(vocabulary["shape"], default=0) < 1 or len(vocabulary["classes"]) < 2:
            raise ValueError(f"shape must be sizes of at least 1, got {vocabulary['shape']}, with at least two classes")
        if not len(vocabulary["mean"]) == len(vocabulary["deviation"]) in (1, columns):
            raise ValueError(f"mean and deviation must have 1 or {columns:,} values, one per column")
        scale = Scale(tuple(vocabulary["mean"]), tuple(vocabulary["deviation"]))
        return cls({}, tuple(vocabulary["classes"]), tuple(vocabulary["shape"]), scale, options)

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "ClassificationTask":
        """Read examples, scaled as those of another run. Their shape must be the same; their classes may differ."""
        loaded, before = cls.load(options), cls.restore(options, vocabulary)
        assert isinstance(loaded, ClassificationTask)
        if loaded.shape != before.shape:
            raise QkvError(f"examples must have the shape {before.shape} of the --start-from model, got {loaded.shape}")
        return replace(loaded, scale=before.scale)

    def read_test(self, path: str) -> LabeledExamples:
        """Read other examples of the same classes to evaluate on."""
        if len(self.shape) == 1:
            return read_points(path, self.classes, label=self.given.get("label", LAST)).examples
        return read_test_images(path, self.classes, self.shape)

    def with_test_file(self, path: str) -> "ClassificationTask":
        """Return this task with the examples of a file as its test split."""
        return self.with_test_examples(self.read_test(path))

    def with_test_examples(self, examples: LabeledExamples) -> "ClassificationTask":
        """Return this task with these examples as its test split."""
        if tuple(examples.inputs.shape[1:]) != self.shape:
            raise QkvError(f"examples must have shape {self.shape}, got {tuple(examples.inputs.shape[1:])}")
        if int(examples.labels.max()) >= len(self.classes):
            raise QkvError(f"labels must be 0 to {len(self.classes) - 1}, got {int(examples.labels.max())}")
        return replace(self, splits={**self.splits, "test": examples})

    def with_data(self) -> "ClassificationTask":
        """Return this task with the data that its options name."""
        loaded = type(self).load(self.given)
        assert isinstance(loaded, ClassificationTask)
        if (loaded.classes, loaded.shape) != (self.classes, self.shape):
            raise QkvError(
                f"the data has changed since training: {len(self.classes)} classes of shape {self.shape} were learned, "
                f"the data has {len(loaded.classes)} of shape {loaded.shape}"
            )
        return replace(self, splits=loaded.splits)

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return self.given

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read from the files."""
        return self.notes

    @property
    def chance(self) -> float:
        """Accuracy of always predicting the most frequent class of the test split."""
        labels = self.splits["test"].labels
        return float(labels.bincount().max()) / len(labels)

    def split_sizes(self) -> dict[str, int]:
        """Return the number of examples by split."""
        return {name: len(examples) for name, examples in self.splits.items()}

    def vocabulary(self) -> dict[str, Any]:
        """Return classes, shape and scale."""
        scale = {"mean": list(self.scale.mean), "deviation": list(self.scale.deviation)}
        return {"classes": list(self.classes), "shape": list(self.shape), **scale}

    def sizes(self) -> tuple[int, ...]:
        """Return the shape of an example, then the number of classes."""
        return *self.shape, len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.shape

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Fit the training split."""
        train, valid = self.splits["train"], self.splits["valid"]
        batches = ShuffledBatches(len(train), settings.batch_size, settings.seed)
        scaled = self.scale.apply(train.inputs) if 4 * train.inputs.numel() <= PRESCALE_BELOW else None

        def collate(ids: list[int]) -> LabeledBatch:
            rows = torch.tensor(ids, dtype=torch.int64)
            # index_select copies whole rows, faster than inputs[rows]
            labels = train.labels.index_select(0, rows)
            if scaled is None:
                return LabeledBatch(self.scale.apply(train.inputs.index_select(0, rows)), labels)
            return LabeledBatch(scaled.index_select(0, rows), labels)

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            if hasattr(model, "loss"):  # such a loss need not be small where the error rate is
                return 1 - self.evaluate(model, "valid")["accuracy"]
            total = 0.0
            for inputs, labels in _batches(valid):
                may_stop()
                total += float(loss(model, self._batch(model, inputs, labels)))
            return total / len(valid)

        return Objective(
            model=model,
            order=batches.batch,
            collate=collate,
            count=lambda tensors: len(LabeledBatch(*tensors).labels),
            loss=lambda model, tensors: loss(model, tensors, settings.label_smoothing),
            validate=validate,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the accuracy and the mean loss.

        A model's own loss is called `own_loss`: it cannot be compared with cross entropy.
        """
        examples = self._split(split)
        model.eval()
        with torch.inference_mode():
            total = sum(float(loss(model, self._batch(model, *batch))) for batch in track(_batches(examples)))
        predicted = self.predict(model, split)
        return {
            "accuracy": accuracy(predicted, examples.labels),
            "own_loss" if hasattr(model, "loss") else "loss": total / len(examples),
            "examples": len(examples),
        }

    def confusion(self, model: nn.Module, split: str) -> ConfusionMatrix:
        """Return counts; row: true class, column: predicted class."""
        counts = confusion_matrix(self.predict(model, split), self._split(split).labels, len(self.classes))
        return ConfusionMatrix(counts, self.classes)

    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return the examples that are classified wrong, the most confident first."""
        return make_mistakes(self._split(split), self._all_probabilities(model, split), self.classes)

    def predict(self, model: nn.Module, split: str) -> Tensor:
        """Return the most probable class of each example."""
        return self._all_probabilities(model, split).argmax(-1)

    def _all_probabilities(self, model: nn.Module, split: str) -> Tensor:
        batches = _batches(self._split(split))
        return torch.cat([self.probabilities(model, inputs) for inputs, _ in track(batches)])

    @torch.inference_mode()
    def probabilities(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return (examples, classes); a perceptron gives 0 and 1."""
        model.eval()
        scaled = self.scale.apply(inputs).to(next(model.parameters()).device)
        return to_probabilities(model(scaled).cpu(), len(self.classes))  # float64, which not every device has

    def predictor(self, model: nn.Module, options: PredictOptions) -> ClassPredictor:
        """Return a predictor of classes."""
        options.reject_tokens(self.kind)
        options.require_used(None)

        def probabilities(examples: Tensor) -> Tensor:
            return self.probabilities(model, examples)

        return ClassPredictor(probabilities, self.classes, self.shape, options)

    def _split(self, split: str) -> LabeledExamples:
        if split not in self.splits:
            raise unknown_name_error("split", split, self.splits)
        return self.splits[split]

    def _batch(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> LabeledBatch:
        device = next(model.parameters()).device
        return LabeledBatch(self.scale.apply(inputs).to(device), labels.to(device))


def _batches(examples: LabeledExamples) -> list[tuple[Tensor, Tensor]]:
    return list(zip(examples.inputs.split(EVAL_BATCH_SIZE), examples.labels.split(EVAL_BATCH_SIZE), strict=True))


def loss(model: nn.Module, tensors: Tensors, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy, summed over the examples, or the model's own `loss`.

    A single logit is that of class 1 against class 0: log(1 + e^-a), the cross entropy of two classes.
    """
    inputs, labels = LabeledBatch(*tensors)
    inputs = inputs.to(next(model.parameters()).dtype)
    own: Callable[[Tensor, Tensor], Tensor] | None = getattr(model, "loss", None)
    if own is not None:
        return own(inputs, labels)
    logits = model(inputs)
    if logits.shape[-1] > 1:
        return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    targets = labels.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits[:, 0], targets, reduction="sum")


def to_probabilities(outputs: Tensor, classes: int) -> Tensor:
    """Return (examples, classes) from logits, from the single logit of two classes, or from predicted classes."""
    if outputs.dim() == 1:
        return functional.one_hot(outputs, classes).double()
    if outputs.shape[-1] == 1:
        one = outputs[:, 0].double().sigmoid()
        return torch.stack((1 - one, one), 1)
    return outputs.double().softmax(-1)
