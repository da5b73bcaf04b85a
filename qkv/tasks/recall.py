"""The task `recall`: multi-query associative recall, on which one sees what linear attention loses."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Recall
from qkv.registry import unknown
from qkv.tasks.base import Job, Preset, register
from qkv.train import Settings, Task
from qkv.train.task import Tensors

IGNORED = -100


def small() -> Preset:
    """Two layers without feed-forward, 32 wide, a minute on two cores."""
    return Preset(
        "decoder",
        {"dim": 32, "heads": 1, "hidden_dim": 0, "layers": 2, "positions": "none", "convolution": 3, "max_length": 64},
        {"steps": 2500, "batch_size": 64, "learning_rate": 1e-2, "weight_decay": 0.1, "warmup": 100, "every": 250},
    )


@dataclass(frozen=True)
class RecallOptions:
    """The size of the riddle."""

    vocabulary: int = 64
    """Token ids."""
    length: int = 32
    """Tokens of an example."""
    pairs: int = 8
    """Keys and values to remember."""
    examples: int = 512
    """Held-out examples."""
    seed: int = 0
    """Of the examples, not of the training."""


@register("recall")
@dataclass(frozen=True)
class RecallJob(Job):
    """Remember pairs and answer with the value of a key: generated, never the same example twice."""

    settings: RecallOptions

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "RecallJob":
        """Nothing is read."""
        names = list(RecallOptions.__dataclass_fields__)
        for name in options:
            if name not in names:
                raise unknown("data setting", name, names)
        return cls(RecallOptions(**options))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "RecallJob":
        """The same."""
        return cls.load(options)

    @property
    def options(self) -> dict[str, Any]:
        """The options in full."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Ids are their own names."""
        return {}

    def sizes(self) -> tuple[int, ...]:
        """Token ids."""
        return (self.settings.vocabulary,)

    @property
    def chance(self) -> float:
        """Guessing among the values in the row."""
        return 1 / self.settings.pairs

    def task(self, model: nn.Module, settings: Settings) -> Task:
        """Fresh examples at every step."""
        source, seed = self._source(), self.settings.seed

        def collate(ids: list[int]) -> Tensors:
            if not ids:
                return source.examples(seed, "train", 0, 0)
            # ids come in steps (the share of a process, the part of an update): draw the span, take every one
            tokens, labels = source.examples(seed, "train", ids[0], ids[-1] - ids[0] + 1)
            places = torch.tensor(ids) - ids[0]
            return tokens[places], labels[places]

        return Task(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=collate,
            count=lambda tensors: int((tensors[1] != IGNORED).sum()),
            loss=lambda model, tensors: _loss(model, tensors, settings.smoothing),
            validate=lambda model, may_stop: 1 - self.evaluate(model, "valid")["accuracy"],
        )

    @torch.inference_mode()
    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """The share of questions answered rightly; there is nothing to search."""
        model.eval()
        device = next(model.parameters()).device
        tokens, labels = self._source().examples(self.settings.seed, split, 0, self.settings.examples)
        asked = labels != IGNORED
        right = sum(
            float((model(t.to(device)).argmax(-1).cpu() == y)[a].sum())
            for t, y, a in zip(tokens.split(256), labels.split(256), asked.split(256), strict=True)
        )
        return {"examples": len(tokens), "accuracy": right / float(asked.sum()), "chance": self.chance}

    def _source(self) -> Recall:
        return Recall(self.settings.vocabulary, self.settings.length, self.settings.pairs)


def _loss(model: nn.Module, tensors: Tensors, smoothing: float) -> Tensor:
    tokens, labels = tensors
    logits = model(tokens)
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
