"""The task `recall`: multi-query associative recall, on which one sees what linear attention loses."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Recall
from qkv.tasks.base import Task, Preset, register
from qkv.tasks.options import read_options
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

IGNORED = -100


def small() -> Preset:
    """One layer with one head and no feed-forward, less than a minute on two cores.

    All that is remembered of the pairs is the state of that one head: how large it is decides, not what else helps.
    The learning rate rises slowly: softmax that is hurried fixes on one token, in some seeds for good.
    """
    sizes = {"dim": 112, "heads": 1, "hidden_dim": 0, "layers": 1, "convolution": 3, "max_length": 384}
    return Preset(
        "decoder",
        {**sizes, "positions": "none"},
        {"steps": 1600, "batch_size": 8, "learning_rate": 5e-3, "weight_decay": 0.1, "warmup": 400, "validate_every": 400},
    )


@dataclass(frozen=True)
class RecallOptions:
    """The size of the riddle."""

    vocabulary: int = 512
    """Token ids."""
    length: int = 384
    """Tokens of an example."""
    pairs: int = 96
    """Keys and values to remember."""
    random_fillers: bool = False
    """Whether other tokens stand where nothing is asked, instead of blanks."""
    halvings: int = 4
    """Training also has examples of half the pairs and length, a quarter, ...: so often, as far as they are even."""
    examples: int = 128
    """Held-out examples, and test examples."""
    seed: int = 0
    """Of the examples, not of the training."""

    def __post_init__(self) -> None:
        for name, least in (("halvings", 0), ("examples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def sizes(self) -> list[tuple[int, int]]:
        """(length, pairs) of training examples, the whole one first."""
        halves = range(self.halvings + 1)
        return [
            (self.length >> half, self.pairs >> half)
            for half in halves
            if not (self.pairs % 2**half or self.length % 2 ** (half + 1))
        ]


@register("recall")
@dataclass(frozen=True)
class RecallTask(Task):
    """Remember pairs and answer with the value of a key: generated, never the same example twice."""

    settings: RecallOptions

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "RecallTask":
        """Nothing is read."""
        return cls(read_options(RecallOptions, options))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "RecallTask":
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

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """Fresh examples at every step; one update after the other of each size.

        Few pairs show in moments how a key finds its value, which with many alone takes long to appear.
        """
        seed = self.settings.seed
        sources = [self._source(*size) for size in self.settings.sizes()] or [self._source()]

        def collate(ids: list[int]) -> Tensors:
            if not ids:
                return sources[0].examples(seed, "train", 0, 0)
            # ids come in steps (the share of a process, the part of an update): draw the span, take every one
            source = sources[ids[0] // settings.batch_size % len(sources)]
            tokens, labels = source.examples(seed, "train", ids[0], ids[-1] - ids[0] + 1)
            places = torch.tensor(ids) - ids[0]
            return tokens[places], labels[places]

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=collate,
            count=lambda tensors: int((tensors[1] != IGNORED).sum()),
            loss=lambda model, tensors: _loss(model, tensors, settings.label_smoothing),
            validate=lambda model, may_stop: self._examine(model, "valid")[1],
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """The share of questions answered rightly; there is nothing to search."""
        return {"examples": self.settings.examples, "accuracy": self._examine(model, split)[0], "chance": self.chance}

    @torch.inference_mode()
    def _examine(self, model: nn.Module, split: str) -> tuple[float, float]:
        """Of all questions of a split the share answered rightly, and the mean loss."""
        model.eval()
        device = next(model.parameters()).device
        examples = self._source().examples(self.settings.seed, split, 0, self.settings.examples)
        right = lost = 0.0
        for tokens, labels in zip(*(tensor.to(device).split(64) for tensor in examples), strict=True):
            asked = labels != IGNORED
            logits = model(tokens, at=asked)
            right += float((logits.argmax(-1) == labels[asked]).sum())
            lost += float(functional.cross_entropy(logits, labels[asked], reduction="sum"))
        questions = self.settings.examples * self.settings.pairs
        return right / questions, lost / questions

    def _source(self, length: int | None = None, pairs: int | None = None) -> Recall:
        own = self.settings
        return Recall(own.vocabulary, length or own.length, pairs or own.pairs, random_fillers=own.random_fillers)


def _loss(model: nn.Module, tensors: Tensors, smoothing: float) -> Tensor:
    tokens, labels = tensors
    asked = labels != IGNORED
    return functional.cross_entropy(model(tokens, at=asked), labels[asked], reduction="sum", label_smoothing=smoothing)
