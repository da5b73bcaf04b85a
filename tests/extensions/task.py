"""Counting upwards modulo a number, as an example of a task of a new family: predict the next integer."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.inference import AnswerPredictor, PredictOptions
from qkv.tasks.base import Preset, Task, register
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

LENGTH, MODULUS = 6, 10


def small() -> Preset:
    """Return a decoder of one layer."""
    sizes = {"dim": 16, "heads": 2, "hidden_dim": 16, "layers": 1, "max_length": 16}
    return Preset("decoder", sizes, {"steps": 150, "batch_size": 8, "learning_rate": 1e-2, "warmup": 5})


@register("count")
class CountTask(Task):
    """Continue 3 4 5 ..."""

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "CountTask":
        """Read nothing: rows are generated."""
        return cls()

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "CountTask":
        """Return the same as `load`."""
        return cls()

    @property
    def options(self) -> dict[str, Any]:
        """No options."""
        return {}

    def vocabulary(self) -> dict[str, Any]:
        """Return nothing: ids are their own names."""
        return {}

    def sizes(self) -> tuple[int, ...]:
        """Return the number of ids."""
        return (MODULUS,)

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Fit rows that start anywhere."""
        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=lambda ids: (_rows(ids),),
            count=lambda tensors: tensors[0].shape[0] * LENGTH,
            loss=_loss,
            validate=lambda model, may_stop: float(_loss(model, (_rows(range(MODULUS)),))) / MODULUS / LENGTH,
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the accuracy of the next integer."""
        rows = _rows(range(MODULUS))
        with torch.no_grad():
            return {"accuracy": float((model(rows[:, :-1]).argmax(-1) == rows[:, 1:]).double().mean())}

    def predictor(self, model: nn.Module, options: PredictOptions) -> "CountPredictor":
        """Return a predictor of the next integer."""
        return CountPredictor(model, options.best)


class CountPredictor(AnswerPredictor):
    """Predict the next integer."""

    def __init__(self, model: nn.Module, best: int):
        super().__init__(best)
        self.model = model

    def check(self, text: str) -> None:
        """Raise ValueError unless the text is integers."""
        if not all(0 <= int(token) < MODULUS for token in text.split()):
            raise ValueError(f"integers must be 0 to {MODULUS - 1}, got {text!r}")

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the most probable next integer of each text."""
        records = []
        for text in texts:
            with torch.no_grad():
                logits = self.model(torch.tensor([[int(token) for token in text.split()]]))[0, -1]
            probability, token = logits.softmax(-1).max(-1)
            answer = {"text": str(int(token)), "probability": float(probability)}
            records.append({"input": text, "answers": [answer], "error": None})
        return records


def _rows(starts: Sequence[int]) -> Tensor:
    return (torch.tensor(list(starts))[:, None] + torch.arange(LENGTH + 1)) % MODULUS


def _loss(model: nn.Module, tensors: Tensors) -> Tensor:
    (rows,) = tensors
    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
