"""Telling classes apart: examples with one label each, their loss, their evaluation."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Labeled, Shuffled
from qkv.data.files.points import parse_numbers
from qkv.metrics import accuracy, confusion_matrix
from qkv.storage import QkvError
from qkv.tasks.base import Task
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

READY = 2**28
"""Bytes up to which the training part is kept as models see it; a larger one is scaled batch by batch."""
TOGETHER = 1000
"""Examples that are judged at once."""


@dataclass(frozen=True)
class Scale:
    """What inputs are measured in: a model sees (input - mean) / deviation; one of each, or one a column."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, inputs: Tensor, *, columns: bool = False) -> "Scale":
        """Of these inputs, each column by itself or all together: then a model sees mean 0 and deviation 1."""
        table = inputs.double().flatten(1) if columns else inputs.double().reshape(-1, 1)
        lowest, highest = table.aminmax(dim=0)
        constant = lowest == highest  # whose deviation need not round to 0
        mean, deviation = table.mean(0), table.std(0, correction=0)
        return cls(
            tuple(torch.where(constant, lowest, mean).tolist()), tuple(deviation.masked_fill(constant, 1).tolist())
        )

    def apply(self, inputs: Tensor) -> Tensor:
        """As a model sees them, in float32; what is float64 stays so until then, lest large numbers become equal."""
        if len(self.mean) == 1:  # in place: a batch of pictures is no small thing to allocate three times
            exact = torch.float64 if inputs.dtype == torch.float64 else torch.float32
            return inputs.to(exact, copy=True).sub_(self.mean[0]).div_(self.deviation[0]).float()
        mean, deviation = (torch.tensor(row, dtype=torch.float64) for row in (self.mean, self.deviation))
        return ((inputs.double() - mean) / deviation).float()


@dataclass(frozen=True)
class ClassificationTask(Task):
    """Examples of several classes in the parts "train", "valid" and "test"."""

    parts: dict[str, Labeled]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    """Of one example."""
    scale: Scale
    given: dict[str, Any]
    """The options in full."""

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "ClassificationTask":
        """Classes, shape and scale without data."""
        scale = Scale(tuple(vocabulary["mean"]), tuple(vocabulary["deviation"]))
        return cls({}, tuple(vocabulary["classes"]), tuple(vocabulary["shape"]), scale, options)

    @abstractmethod
    def read_test(self, path: str) -> Labeled:
        """Other examples to evaluate on, of the same classes."""

    def with_test(self, examples: Labeled) -> "ClassificationTask":
        """The same job with these examples as its test part."""
        if tuple(examples.inputs.shape[1:]) != self.shape:
            raise QkvError(f"examples must have shape {self.shape}, got {tuple(examples.inputs.shape[1:])}")
        if int(examples.labels.max()) >= len(self.classes):
            raise QkvError(f"labels must be 0 to {len(self.classes) - 1}, got {int(examples.labels.max())}")
        return replace(self, parts={**self.parts, "test": examples})

    def with_data(self) -> "ClassificationTask":
        """The same job with the data that its options name."""
        loaded = type(self).load(self.given)
        assert isinstance(loaded, ClassificationTask)
        if (loaded.classes, loaded.shape) != (self.classes, self.shape):
            raise QkvError(
                f"the data have changed since the training: {len(self.classes)} classes of shape {self.shape} were "
                f"learned, {len(loaded.classes)} of shape {loaded.shape} are there"
            )
        return replace(self, parts=loaded.parts)

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return self.given

    @property
    def chance(self) -> float:
        """Always saying the commonest class of the test part."""
        labels = self.parts["test"].labels
        return float(labels.bincount().max()) / len(labels)

    def vocabulary(self) -> dict[str, Any]:
        """What an answer needs."""
        scale = {"mean": list(self.scale.mean), "deviation": list(self.scale.deviation)}
        return {"classes": list(self.classes), "shape": list(self.shape), **scale}

    def sizes(self) -> tuple[int, ...]:
        """The axes of an example, then the number of classes."""
        return *self.shape, len(self.classes)

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Fit the training part."""
        train, valid = self.parts["train"], self.parts["valid"]
        batches = Shuffled(len(train), settings.batch_size, settings.seed)
        ready = self.scale.apply(train.inputs) if 4 * train.inputs.numel() <= READY else None

        def collate(ids: list[int]) -> Tensors:
            chosen = torch.tensor(ids, dtype=torch.int64)
            # index_select copies whole rows, which inputs[chosen] is slower at
            labels = train.labels.index_select(0, chosen)
            if ready is None:
                return self.scale.apply(train.inputs.index_select(0, chosen)), labels
            return ready.index_select(0, chosen), labels

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            if hasattr(model, "loss"):  # of its own, which need not be small where mistakes are few
                return 1 - self.evaluate(model, "valid")["accuracy"]
            total = 0.0
            for inputs, labels in _chunks(valid):
                may_stop()
                total += float(loss(model, self._seen(model, inputs, labels)))
            return total / len(valid)

        return Objective(
            model=model,
            order=batches.batch,
            collate=collate,
            count=lambda tensors: len(tensors[1]),
            loss=lambda model, tensors: loss(model, tensors, settings.label_smoothing),
            validate=validate,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """The share that is right, and the loss an example; there is nothing to search.

        A loss of the model's own goes by another name, since it cannot be laid beside cross entropy.
        """
        examples = self._part(split)
        model.eval()
        with torch.inference_mode():
            lost = sum(float(loss(model, self._seen(model, *pair))) for pair in _chunks(examples))
        found = self.predict(model, split)
        return {
            "accuracy": accuracy(found, examples.labels),
            "own_loss" if hasattr(model, "loss") else "loss": lost / len(examples),
            "examples": len(examples),
        }

    def confusion(self, model: nn.Module, split: str) -> list[list[int]]:
        """Row: the right class; column: what it was taken for."""
        return confusion_matrix(self.predict(model, split), self._part(split).labels, len(self.classes))

    def predict(self, model: nn.Module, split: str) -> Tensor:
        """The likeliest class of each example."""
        chunks = [self.probabilities(model, inputs).argmax(-1) for inputs, _ in _chunks(self._part(split))]
        return torch.cat(chunks)

    @torch.inference_mode()
    def probabilities(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """(examples, classes); of a perceptron, which is never in doubt, 0 and 1."""
        model.eval()
        (seen,) = self._seen(model, inputs)
        return to_probabilities(model(seen), len(self.classes)).cpu()

    def parse(self, text: str) -> Tensor:
        """An example from a text of its numbers."""
        numbers = parse_numbers(text)
        if len(numbers) != prod(self.shape):
            raise ValueError(f"{text[:40]!r} has {len(numbers)} numbers, but the model takes {prod(self.shape)}")
        return torch.tensor(numbers, dtype=torch.float64).view(self.shape)

    def _part(self, split: str) -> Labeled:
        if split not in self.parts:
            raise QkvError(f"there is no part {split!r} (there are: {', '.join(self.parts)})")
        return self.parts[split]

    def _seen(self, model: nn.Module, inputs: Tensor, *rest: Tensor) -> Tensors:
        device = next(model.parameters()).device
        return tuple(tensor.to(device) for tensor in (self.scale.apply(inputs), *rest))


def _chunks(examples: Labeled) -> list[tuple[Tensor, Tensor]]:
    return list(zip(examples.inputs.split(TOGETHER), examples.labels.split(TOGETHER), strict=True))


def loss(model: nn.Module, tensors: Tensors, smoothing: float = 0.0) -> Tensor:
    """Cross entropy, summed over the examples; a model with a `loss` of its own is judged by that.

    One logit is that of class 1 against class 0: by log(1 + e^-a), which is cross entropy for two classes.
    """
    inputs, labels = tensors
    inputs = inputs.to(next(model.parameters()).dtype)
    own: Callable[[Tensor, Tensor], Tensor] | None = getattr(model, "loss", None)
    if own is not None:
        return own(inputs, labels)
    logits = model(inputs)
    if logits.shape[-1] > 1:
        return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    wanted = labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits[:, 0], wanted, reduction="sum")


def to_probabilities(outputs: Tensor, classes: int) -> Tensor:
    """(examples, classes) from logits, from the one logit of two classes, or from answers."""
    if outputs.dim() == 1:
        return functional.one_hot(outputs, classes).double()
    if outputs.shape[-1] == 1:
        one = outputs[:, 0].double().sigmoid()
        return torch.stack((1 - one, one), 1)
    return outputs.double().softmax(-1)
