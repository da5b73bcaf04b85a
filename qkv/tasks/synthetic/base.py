"""A generated task: endless rows of tokens, each a function of a seed and its number, tested size by size.

    accuracy                 mean over the sizes of the test
    scaled accuracy          (accuracy - chance) / (1 - chance): 0 is guessing, 1 is always right

A task of this family names its tokens, and makes the rows of one size.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from qkv.draw import Mistakes
from qkv.errors import nearest_name
from qkv.inference.candidates import Candidates, next_candidates
from qkv.inference.text_input import TextInput, TokenSequence
from qkv.tasks.base import Preset, Task
from qkv.tasks.options import read_options
from qkv.tasks.synthetic.options import SyntheticOptions
from qkv.tasks.synthetic.rows import (
    IGNORE_INDEX,
    Draws,
    RowBatch,
    answer_count,
    answer_loss,
    find_mistakes,
    last_answers,
    pad_rows,
    require_readable,
    score_rows,
    split_numbers,
)
from qkv.train import Objective, Settings

STATE_TRACKER = "delta+write(largest=2)"
"""A kind that can follow a state: write strengths above 1 give the state negative eigenvalues."""
BLOCK = 16
"""Training examples with consecutive numbers that share a size, so that a batch has little padding."""


@dataclass(frozen=True)
class Condition:
    """What the examples of one row of the test have in common."""

    size: int
    """Such as the length."""
    depth: float | None = None
    """Position of the needle, from 0 (start) to 1 (end); None: drawn at random, or the task has no needle."""


class SymbolInput(TextInput):
    """Tokens of a generated task, separated by spaces."""

    def __init__(self, model: nn.Module, names: Sequence[str], example: str):
        super().__init__(model)
        self.names = list(names)
        self.ids = {name: index for index, name in enumerate(names)}
        self.example = example

    def tokenize(self, text: str) -> TokenSequence:
        """Return the ids; a text that is no token of the task raises ValueError."""
        tokens = text.split()
        for token in tokens:
            if token not in self.ids:
                nearest = nearest_name(token, self.names)
                hint = f"; did you mean {nearest!r}?" if nearest else ""
                shown = token if len(token) <= 20 else f"{token[:20]}..."
                listed = " ".join(self.names[:20]) + (" ..." if len(self.names) > 20 else "")
                raise ValueError(f"this model reads {listed}, separated by spaces, got {shown!r}{hint}")
        return TokenSequence(tokens, [self.ids[token] for token in tokens], [])

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return the most probable answers after the last token."""
        return [next_candidates(self.model, source.ids, lambda index: self.names[index])]


class SyntheticTask(Task):
    """Rows of tokens with answers; a subclass names the tokens and makes the rows."""

    unit = "answers"
    axis: ClassVar[str] = "length"
    """What `Condition.size` counts."""
    scores_last: ClassVar[bool] = False
    """Whether only the last answer of a row is tested: the state after the whole row."""
    scores_rows: ClassVar[bool] = False
    """Whether the share of rows without any wrong answer is a metric, too."""

    def __init__(self, settings: Any):
        self.settings = settings

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Name of each token id."""

    @abstractmethod
    def rows(self, draws: Draws, condition: Condition) -> RowBatch:
        """Return one example per number of `draws`, all under one condition."""

    def conditions(self) -> list[Condition]:
        """Return what is tested, one condition per row of the test."""
        return [Condition(size) for size in self.settings.test_sizes()]

    # --- data ---

    @classmethod
    def load(cls, options: dict[str, Any]) -> Self:
        """Read nothing: examples are generated."""
        assert cls.data_options is not None
        return cls(read_options(cls.data_options, options))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> Self:
        """Return the same as `load`."""
        return cls.load(options)

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        values = asdict(self.settings)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def vocabulary(self) -> dict[str, Any]:
        """Return nothing: the options decide the tokens."""
        return {}

    def sizes(self) -> tuple[int, ...]:
        """Return the vocabulary size."""
        return (len(self.names),)

    def examples(self, split: str, index: int, count: int, condition: Condition | None = None) -> RowBatch:
        """Return the examples `index` to `index + count - 1` of a split; None: sizes are drawn as for training."""
        return self._examples(split_numbers(split, index, count), condition)

    def _examples(self, numbers: Tensor, condition: Condition | None) -> RowBatch:
        own: SyntheticOptions = self.settings
        if condition is not None or not len(numbers):
            condition = condition or Condition(own.train_sizes()[0])
            return self.rows(Draws(own.seed, self.kind, numbers), condition)
        smallest, largest = own.train_sizes()
        blocks = Draws(own.seed, f"{self.kind} size", numbers // BLOCK)
        drawn = smallest + blocks.integers("of a block", 1, largest - smallest + 1)[:, 0]
        sizes, group, counts = drawn.unique(return_inverse=True, return_counts=True)
        order = group.argsort(stable=True)
        parts = [
            self.rows(Draws(own.seed, self.kind, some), Condition(size))
            for size, some in zip(sizes.tolist(), numbers[order].split(counts.tolist()), strict=True)
        ]
        tokens, targets = pad_rows(parts)
        back = order.argsort()
        return RowBatch(tokens[back], targets[back])

    def validate_model(self, model: nn.Module) -> None:
        """Raise if rows of training or test are longer than the model takes."""
        conditions = [Condition(self.settings.train_sizes()[1]), *self.conditions()]
        require_readable(model, max(self.row_length(condition) for condition in conditions))

    def row_length(self, condition: Condition) -> int:
        """Return the most tokens of a row."""
        return self.examples("test", 0, 1, condition).input_ids.shape[1]

    def example_batch(self, settings: Settings) -> RowBatch:
        """Return one example of the largest size of the test."""
        return self.examples("train", 0, 1, max(self.conditions(), key=lambda condition: condition.size))

    # --- training and evaluation ---

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Draw new examples at every step."""

        def collate(ids: list[int]) -> RowBatch:
            numbers = torch.tensor(ids, dtype=torch.int64) + split_numbers("train", 0, 1)
            return self._examples(numbers, None)

        def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
            may_stop()
            found = score_rows(model, self.examples("valid", 0, self.settings.examples))
            return found.loss / found.answers

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=collate,
            count=answer_count,
            loss=lambda model, tensors: answer_loss(model, tensors, settings.label_smoothing),
            validate=validate,
        )

    def metric_name(self, condition: Condition) -> str:
        """Return the name of the accuracy under a condition, such as length_256_depth_50_accuracy."""
        depth = "" if condition.depth is None else f"_depth_{round(100 * condition.depth)}"
        return f"{self.axis}_{condition.size}{depth}_accuracy"

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the accuracy, the scaled accuracy, and the accuracy under each condition."""
        found, rows, right_rows = {}, 0, 0
        for condition in self.conditions():
            batch = self.examples(split, 0, self.settings.examples, condition)
            score = score_rows(model, last_answers(batch) if self.scores_last else batch)
            found[self.metric_name(condition)] = score.right / score.answers
            rows, right_rows = rows + score.rows, right_rows + score.right_rows
        mean, chance = sum(found.values()) / len(found), self.chance
        whole = {"row_accuracy": right_rows / rows} if self.scores_rows else {}
        return {
            "examples": rows,
            "accuracy": mean,
            "scaled_accuracy": scale_accuracy(mean, chance),
            **whole,
            **found,
            "chance": chance,
        }

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of the best constant guess."""

    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return wrong answers under the first condition of the test."""
        batch = self.examples(split, 0, min(self.settings.examples, BLOCK), self.conditions()[0])
        return find_mistakes(model, last_answers(batch) if self.scores_last else batch, lambda index: self.names[index])

    def text_input(self, model: nn.Module) -> SymbolInput:
        """Return a reader of the tokens."""
        tokens, targets = self.examples("test", 0, 1, self.conditions()[0])
        last = int((targets[0] != IGNORE_INDEX).nonzero()[-1])
        return SymbolInput(model, self.names, " ".join(self.names[index] for index in tokens[0, : last + 1].tolist()))


def scale_accuracy(accuracy: float, chance: float) -> float:
    """Return (accuracy - chance) / (1 - chance): 0 for guessing, 1 for always right."""
    return (accuracy - chance) / (1 - chance)


def small_decoder(steps: int, learning_rate: float, batch_size: int = 32, **model: Any) -> Preset:
    """Return a preset for a minute on a CPU: a decoder without positions, whose convolution sees the last tokens."""
    sizes = {"dim": 64, "heads": 2, "hidden_dim": 0, "layers": 2, "convolution": 4, "positions": "none"}
    training = {
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": 0.0,
        "warmup": steps // 10,
        "validate_every": steps // 4,
    }
    return Preset("decoder", {**sizes, **model}, training)
