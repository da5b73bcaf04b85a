"""The task `recall`: multi-query associative recall, which shows what linear attention loses."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Recall
from qkv.draw import Example, Mistakes, ReportAnswer
from qkv.inference.candidates import Candidates, next_candidates
from qkv.inference.progress import track
from qkv.inference.text_input import TextInput, TokenSequence
from qkv.tasks.base import Preset, Task, register
from qkv.tasks.options import read_options
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

IGNORE_INDEX = -100
EVAL_BATCH_SIZE = 64
MAX_MISTAKES = 50


def small() -> Preset:
    """Return one layer with one head and no feed-forward layer: less than a minute on two cores.

    The state of that head is all the memory there is, so its size alone decides. The warmup is slow: with a fast one
    softmax fixes on one token in some seeds and never recovers.
    """
    sizes = {"dim": 112, "heads": 1, "hidden_dim": 0, "layers": 1, "convolution": 3, "max_length": 384}
    return Preset(
        "decoder",
        {**sizes, "positions": "none"},
        {
            "steps": 1600,
            "batch_size": 8,
            "learning_rate": 5e-3,
            "weight_decay": 0.1,
            "warmup": 400,
            "validate_every": 400,
        },
    )


@dataclass(frozen=True)
class RecallOptions:
    """Sizes of the generated examples."""

    vocabulary: int = 512
    """Token ids."""
    length: int = 384
    """Tokens per example."""
    pairs: int = 96
    """Key-value pairs to remember."""
    random_fillers: bool = False
    """Whether positions without a query hold random tokens instead of blanks."""
    halvings: int = 4
    """Halvings: training also uses examples with half the pairs and length, a quarter, ... as long as both are even."""
    examples: int = 128
    """Examples of the validation and of the test split."""
    seed: int = 0
    """Seed of the examples, not of the training."""

    def __post_init__(self) -> None:
        for name, least in (("halvings", 0), ("examples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def sizes(self) -> list[tuple[int, int]]:
        """Return (length, pairs) of training examples, the full size first."""
        return [
            (self.length >> half, self.pairs >> half)
            for half in range(self.halvings + 1)
            if not (self.pairs % 2**half or self.length % 2 ** (half + 1))
        ]


class RecallBatch(NamedTuple):
    """Rows of keys, values and queries, each (batch, time)."""

    input_ids: Tensor
    target_ids: Tensor
    """The value at each query; IGNORE_INDEX elsewhere."""


class RecallInput(TextInput):
    """Token ids typed as integers."""

    def __init__(self, model: nn.Module, options: RecallOptions):
        super().__init__(model)
        self.options = options
        source = Recall(options.vocabulary, options.length, options.pairs)
        self.example = " ".join(map(str, source.examples(options.seed, "test", 0, 1)[0][0].tolist()))

    def tokenize(self, text: str) -> TokenSequence:
        """Return the ids; anything but an id of the vocabulary raises ValueError."""
        tokens = text.split()
        highest = self.options.vocabulary - 1
        for token in tokens:
            if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) <= highest):
                shown = token if len(token) <= 20 else f"{token[:20]}..."
                raise ValueError(f"this model reads integers from 0 to {highest}, separated by spaces, got {shown!r}")
        return TokenSequence(tokens, [int(token) for token in tokens], [])

    def candidates(self, source: TokenSequence) -> list[Candidates]:
        """Return the most probable values for the last token."""
        return [next_candidates(self.model, source.ids, str)]


@register("recall")
@dataclass(frozen=True)
class RecallTask(Task):
    """Remember key-value pairs and recall the value of each key: generated, no example twice."""

    settings: RecallOptions

    unit = "queries"
    data_options = RecallOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small}

    @classmethod
    def load(cls, options: dict[str, Any]) -> "RecallTask":
        """Read nothing: examples are generated."""
        return cls(read_options(RecallOptions, options))

    @classmethod
    def restore(cls, options: dict[str, Any], vocabulary: dict[str, Any]) -> "RecallTask":
        """Return the same as `load`."""
        return cls.load(options)

    @property
    def options(self) -> dict[str, Any]:
        """All data options."""
        return asdict(self.settings)

    def vocabulary(self) -> dict[str, Any]:
        """Return nothing: ids are their own names."""
        return {}

    def sizes(self) -> tuple[int, ...]:
        """Return the vocabulary size."""
        return (self.settings.vocabulary,)

    @property
    def chance(self) -> float:
        """Accuracy of guessing among the values of the row."""
        return 1 / self.settings.pairs

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Draw new examples at every step, cycling through the sizes.

        A model learns how a key finds its value from few pairs in moments; from many pairs alone it takes long.
        """
        seed = self.settings.seed
        sources = [self._source(*size) for size in self.settings.sizes()] or [self._source()]

        def collate(ids: list[int]) -> RecallBatch:
            if not ids:
                return RecallBatch(*sources[0].examples(seed, "train", 0, 0))
            # ids are strided (share of a process, part of an update): draw the span, then pick
            source = sources[ids[0] // settings.batch_size % len(sources)]
            tokens, labels = source.examples(seed, "train", ids[0], ids[-1] - ids[0] + 1)
            rows = torch.tensor(ids) - ids[0]
            return RecallBatch(tokens[rows], labels[rows])

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=collate,
            count=lambda tensors: int((RecallBatch(*tensors).target_ids != IGNORE_INDEX).sum()),
            loss=lambda model, tensors: _loss(model, tensors, settings.label_smoothing),
            validate=lambda model, may_stop: self._score(model, "valid")[1],
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the accuracy over all queries."""
        return {"examples": self.settings.examples, "accuracy": self._score(model, split)[0], "chance": self.chance}

    @torch.inference_mode()
    def _score(self, model: nn.Module, split: str) -> tuple[float, float]:
        """Return the accuracy and the mean loss over all queries of a split."""
        model.eval()
        device = next(model.parameters()).device
        examples = self._source().examples(self.settings.seed, split, 0, self.settings.examples)
        right = total_loss = 0.0
        batches = zip(*(tensor.to(device).split(EVAL_BATCH_SIZE) for tensor in examples), strict=True)
        for tokens, labels in track(list(batches)):
            queries = labels != IGNORE_INDEX
            logits = model(tokens, at=queries)
            right += float((logits.argmax(-1) == labels[queries]).sum())
            total_loss += float(functional.cross_entropy(logits, labels[queries], reduction="sum"))
        queries_in_all = self.settings.examples * self.settings.pairs
        return right / queries_in_all, total_loss / queries_in_all

    @torch.inference_mode()
    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return the queries of a few rows whose value was not recalled."""
        rows = min(self.settings.examples, EVAL_BATCH_SIZE)
        tokens, labels = self._source().examples(self.settings.seed, split, 0, rows)
        queries = labels != IGNORE_INDEX
        device = next(model.parameters()).device
        best, predicted = model.eval()(tokens.to(device), at=queries.to(device)).float().softmax(-1).cpu().max(-1)
        wrong = (predicted != labels[queries]).nonzero()[:, 0].tolist()
        places = queries.nonzero().tolist()
        shown = [
            Example(
                f"key {int(tokens[row, position])} at position {position} of row {row}",
                [ReportAnswer(str(int(predicted[index])), float(best[index]))],
                [str(int(labels[row, position]))],
            )
            for index in wrong[:MAX_MISTAKES]
            for row, position in (places[index],)
        ]
        return Mistakes(shown, len(wrong), len(places))

    def text_input(self, model: nn.Module) -> RecallInput:
        """Return a reader of token ids."""
        return RecallInput(model, self.settings)

    def _source(self, length: int | None = None, pairs: int | None = None) -> Recall:
        own = self.settings
        return Recall(own.vocabulary, length or own.length, pairs or own.pairs, random_fillers=own.random_fillers)


def _loss(model: nn.Module, tensors: Tensors, label_smoothing: float) -> Tensor:
    batch = RecallBatch(*tensors)
    queries = batch.target_ids != IGNORE_INDEX
    logits, targets = model(batch.input_ids, at=queries), batch.target_ids[queries]
    return functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
