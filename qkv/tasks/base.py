"""The task contract: everything that the commands, comparisons and the workbench need from a task.

Callers never test which task they have: they call a method. The default method here is that of a task without the
ability.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import nn

from qkv.data import Tokenizer, Vectors
from qkv.draw import Mistakes, TrainingReport
from qkv.inference import MaskedLM, ObjectFinder, PredictOptions, Predictor, TextInput
from qkv.metrics import Answers
from qkv.registry import Registry
from qkv.tasks.report import make_training_report
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors


@dataclass(frozen=True)
class Preset:
    """A model family with its sizes, training settings and data options."""

    family: str
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that a model is built with."""

    sizes: tuple[int, ...]
    """The same as `Task.sizes`."""
    shape: tuple[int, ...] | None = None
    """Shape of one input, for tasks whose inputs are float tensors."""
    inputs: tuple[str, ...] = ()
    """Inputs of a model that takes several, such as float[1,n,4]; instead of `shape`."""
    note: str | None = None
    """Origin of the sizes, if they are not from the data."""


class ConfusionMatrix(NamedTuple):
    """Counts of (true class, predicted class)."""

    counts: list[list[int]]
    classes: tuple[str, ...]


class Sample(NamedTuple):
    """A held-out input, the answers of a model with their probabilities, and the right answers."""

    source: str
    answers: list[tuple[str, float]]
    right: list[str]
    attended: str
    """Each predicted token with the source token that it attends to most; empty: not known."""


class RunSummary(NamedTuple):
    """A finished run, as its report shows it."""

    task: str
    family: str
    model: dict[str, Any]
    train: Settings
    data: dict[str, Any]
    metrics: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    rates: dict[str, dict[str, float]]
    """Search -> metrics on the evaluated split."""


class Task(ABC):
    """Data to train on or to predict with, and what a model does with it."""

    kind: ClassVar[str]
    """The registered name."""
    presets: ClassVar[dict[str, Callable[[], Preset]]]
    """Named presets; the first is the default."""
    data_options: ClassVar[type[Any] | None] = None
    """Dataclass of the options that `load` reads; None: not known."""

    @classmethod
    def default_preset(cls, options: dict[str, Any]) -> str:
        """Return the preset to use for these data options where none is chosen: the first."""
        return next(iter(cls.presets))

    # --- data ---

    @classmethod
    @abstractmethod
    def load(cls, options: dict[str, Any]) -> "Task":
        """Read the data that these options (`--set data.name=value`) name."""

    @classmethod
    @abstractmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Task":
        """Build the task of a trained run from its vocabulary, without data."""

    @classmethod
    def load_with_vocabulary(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "Task":
        """Read the data with the vocabulary of another run, whose model is trained further; raise if it cannot."""
        return cls.restore(options, vocabulary).with_data()

    def with_data(self) -> "Task":
        """Return this task with the data that its options name; a task that generates its data is ready as it is."""
        return self

    def with_test_file(self, path: str) -> "Task":
        """Return this task with the test split read from a file."""
        raise ValueError(f"--test-file {path}: the task {self.kind} reads no file")

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """All data options, defaults included, for config.json."""

    @abstractmethod
    def vocabulary(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain data."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about the data to print before training."""
        return ()

    def split_sizes(self) -> dict[str, int]:
        """Return the number of examples by split; empty: not known before training."""
        return {}

    @property
    def default_split(self) -> str:
        """The split that a finished run is evaluated on."""
        return "test"

    # --- model ---

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the model sizes without reading the data; None: the data decide."""
        return None

    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Return the vocabulary sizes, or input and class sizes, that a model is built with."""

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of one input, for tasks whose inputs are float tensors."""
        return None

    @property
    def input_specs(self) -> tuple[str, ...]:
        """Inputs of a model that takes several, as `qkv cost --input` describes them; empty: `input_shape` decides."""
        return ()

    def init_weights(self, model: nn.Module) -> None:  # noqa: B027 - most tasks keep the model's own
        """Change the initial weights of a model for this task."""

    def validate_model(self, model: nn.Module) -> None:
        """Raise if this model cannot learn the task; called before a run folder exists."""
        return

    def validate_settings(self, settings: Settings) -> None:
        """Raise if a training setting has no meaning for this task; called before a run folder exists."""
        return

    # --- training and evaluation ---

    @property
    def teacher_runs(self) -> tuple[Path, ...]:
        """Run folders whose models teach this one (distillation)."""
        return ()

    @abstractmethod
    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Return batches, loss and validation for the training loop; `teachers` is the model of `teacher_runs`."""

    unit: ClassVar[str] = "tokens"
    """What `Objective.count` counts, as a plural: the unit of speed."""
    own_update: ClassVar[bool] = False
    """Whether the objective updates the model itself (`Objective.update`), in one process."""
    decodes: ClassVar[bool] = False
    """Whether `evaluate` takes search options: `beams`, `length_penalty`."""

    @property
    def searches(self) -> dict[str, dict[str, Any]]:
        """Name -> search options to evaluate a finished run with; one without a name if the task does not decode."""
        return {"greedy": {"beams": 1}, "beam 4": {"beams": 4}} if self.decodes else {"": {}}

    learning_rate_factors: ClassVar[tuple[float, ...]] = (1 / 3, 1.0, 3.0)
    """Learning rates that a comparison tries by default, as multiples of the preset's."""

    @property
    def chance(self) -> float | None:
        """Accuracy of the best constant guess; None: not defined."""
        return None

    def caveat(self, split: str) -> str:
        """Return the limits of a comparison on this split, as a sentence; empty: nothing to add."""
        return ""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the metrics of a model on a split."""

    def answers(self, model: nn.Module, split: str, **search: Any) -> Answers | None:
        """Return what the model writes for a split, beside the right texts; None: the task does not write texts."""
        return None

    def confusion(self, model: nn.Module, split: str) -> ConfusionMatrix | None:
        """Return which classes are taken for which; None: the task has no classes."""
        return None

    def samples(self, model: nn.Module) -> list[Sample]:
        """Return a few held-out inputs with the model's answers, to print after training."""
        return []

    headline: ClassVar[str] = ""
    """Most important metric, first in the report; empty: the first metric that is not a count."""

    def mistakes(self, model: nn.Module, split: str) -> Mistakes | None:
        """Return wrong answers of the model with the right ones, for the report; None: not known."""
        return None

    def report(self, model: nn.Module, summary: RunSummary) -> TrainingReport:
        """Return the report page of a finished run."""
        return make_training_report(self, model, summary)

    # --- prediction ---

    def predictor(self, model: nn.Module, options: PredictOptions) -> Predictor | None:
        """Return the predictor behind `qkv predict`; None: the task takes no text input."""
        return None

    def text_input(self, model: nn.Module) -> TextInput | None:
        """Return the reader behind the workbench; None: the model has no attention over tokens to show."""
        return None

    def masked_lm(self, model: nn.Module) -> MaskedLM | None:
        """Return the model as a masked language model, for embeddings; None: the task has no masks."""
        return None

    def text_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of a model that continues texts; None: the task generates no text."""
        return None

    def object_finder(self, model: nn.Module) -> ObjectFinder | None:
        """Return the detector that finds objects in pictures; None: the task has no boxes."""
        return None

    def vectors(self, model: nn.Module, representation: str = "center") -> Vectors | None:
        """Return the word vectors of the model; None: it has none."""
        return None

    @classmethod
    def reads_tokens(cls) -> bool:
        """Return whether `text_input` gives a reader."""
        return cls.text_input is not Task.text_input

    # --- cost ---

    def example_batch(self, settings: Settings) -> Tensors:
        """Return a batch of one example at the task's length."""
        return self.objective(nn.Identity(), settings).collate([0])

    def run_example(self, model: nn.Module, batch: Tensors) -> bool:
        """Run the model on `example_batch` as prediction does, to count its work; False: count the loss instead."""
        return False

    def decoding_state(self, model: Any, batch: Tensors) -> Any:
        """Return the state of the model after decoding this batch; None: the model cannot decode."""
        return model.start(batch[0], None) if hasattr(model, "start") else None

    def decoding_speed(self, model: nn.Module, split: str) -> float | None:
        """Return the tokens per second of greedy decoding; None: the task decodes nothing."""
        return None


tasks: Registry[Task] = Registry("task", group="qkv.tasks")
register = tasks.register
