"""The contract of a job that a command can train: which data, which presets, which metric."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from qkv.registry import Registry
from qkv.train import Settings, Objective


@dataclass(frozen=True)
class Preset:
    """A model family with its sizes, how to train it, and options of the data."""

    family: str
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSizes:
    """What a model is built for."""

    sizes: tuple[int, ...]
    """As `Job.sizes`."""
    shape: tuple[int, ...] | None = None
    """Of one example, where examples are numbers."""
    note: str | None = None
    """Where the sizes are from, if it is not the data."""


class Task(ABC):
    """Data that is ready to train on, or to decode with."""

    kind: ClassVar[str]
    """The registry name."""
    presets: ClassVar[dict[str, Callable[[], Preset]]]
    """Named ways to do it; the first is the default."""

    @classmethod
    @abstractmethod
    def load(cls, options: dict[str, Any]) -> "Task":
        """Read the data that these options (`--set data.name=value`) name."""

    @classmethod
    @abstractmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Task":
        """What a trained run needs of it: the vocabulary of its folder, no data."""

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """What is known of a model without the data that these options name; None: they have to be read."""
        return None

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options in full, defaults too, for config.json."""

    @abstractmethod
    def vocabulary(self) -> dict[str, Any]:
        """What `restore` needs again, as plain data."""

    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Vocabulary sizes that a model is built with."""

    def init_weights(self, model: nn.Module) -> None:  # noqa: B027 - most tasks have nothing to do here
        """Change the first weights of a model for this task; nothing, unless a task says so."""

    @abstractmethod
    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        """The job as the training loop sees it."""

    def validate_model(self, model: nn.Module) -> None:
        """Raise if this model cannot learn it; asked before there is a run folder."""
        return

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """How good the model is on a part of the data."""


tasks: Registry[Task] = Registry("task", group="qkv.tasks")
register = tasks.register
