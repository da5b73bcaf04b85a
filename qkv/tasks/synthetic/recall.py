"""The task `recall`: multi-query associative recall, which shows what linear attention loses."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import nn

from qkv.data import Recall
from qkv.draw import Mistakes
from qkv.inference.candidates import Candidates, next_candidates
from qkv.inference.text_input import TextInput, TokenSequence
from qkv.tasks.base import Preset, Task, register
from qkv.tasks.options import read_options
from qkv.tasks.synthetic.base import scale_accuracy
from qkv.tasks.synthetic.options import require_range
from qkv.tasks.synthetic.rows import (
    EVAL_BATCH_SIZE,
    RowBatch,
    answer_count,
    answer_loss,
    find_mistakes,
    require_readable,
    score_rows,
)
from qkv.train import Objective, Settings

PUBLISHED_TRAINING = "5*64:4,128:8,256:16,256:32,256:64"
PUBLISHED_TEST = "64:4,64:8,64:16,128:32,256:64,512:128,1024:256"


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


def published() -> Preset:
    """Return the sizes of zoology's plot of recall over state bytes: for a GPU.

    180,000 examples of five sizes, 32 epochs; the test is the mean over seven sizes, up to four times the longest
    training example. Change `dim` (64, 128, 256) for other points. Rates that were published: 0.001 to 0.032.
    """
    sizes = {"dim": 128, "heads": 2, "hidden_dim": 0, "layers": 2, "convolution": 4, "max_length": 1024}
    return Preset(
        "decoder",
        {**sizes, "positions": "none"},
        {
            "steps": 22_500,
            "batch_size": 256,
            "learning_rate": 5e-3,
            "weight_decay": 0.1,
            "warmup": 2_250,
            "validate_every": 2_250,
        },
        {
            "vocabulary": 8192,
            "length": 256,
            "pairs": 64,
            "random_fillers": True,
            "train_sizes": PUBLISHED_TRAINING,
            "test_sizes": PUBLISHED_TEST,
            "examples": 1000,
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
    train_sizes: str | None = None
    """Sizes of training examples in turn, such as 5*64:4,128:8 (length:pairs); None: the full size and its halves."""
    test_sizes: str | None = None
    """Sizes to test at, such as 64:4,512:64; None: the full size."""
    examples: int = 128
    """Examples of the validation and of the test split, at each size."""
    seed: int = 0
    """Seed of the examples, not of the training."""

    def __post_init__(self) -> None:
        require_range(self, halvings=0, examples=1)
        self.sizes()
        self.tested()

    def tested(self) -> list[tuple[int, int]]:
        """Return (length, pairs) of the examples to test on."""
        given = self.test_sizes
        return [(self.length, self.pairs)] if given is None else list(dict.fromkeys(_read_sizes("test_sizes", given)))

    def sizes(self) -> list[tuple[int, int]]:
        """Return (length, pairs) of training examples, the full size first."""
        if self.train_sizes is not None:
            return _read_sizes("train_sizes", self.train_sizes)
        return [
            (self.length >> half, self.pairs >> half)
            for half in range(self.halvings + 1)
            if not (self.pairs % 2**half or self.length % 2 ** (half + 1))
        ]


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
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"small": small, "published": published}

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
        """Accuracy of guessing among the values of the row, mean over the sizes of the test."""
        tested = self.settings.tested()
        return sum(1 / pairs for _, pairs in tested) / len(tested)

    def validate_model(self, model: nn.Module) -> None:
        """Raise if rows of training or test are longer than the model takes."""
        require_readable(model, max(length for length, _ in (*self.settings.sizes(), *self.settings.tested())))

    def example_batch(self, settings: Settings) -> RowBatch:
        """Return one example of the largest size of the test."""
        return RowBatch(*self._source(*max(self.settings.tested())).examples(self.settings.seed, "train", 0, 1))

    def objective(self, model: nn.Module, settings: Settings, teachers: nn.Module | None = None) -> Objective:
        """Draw new examples at every step, cycling through the sizes.

        A model learns how a key finds its value from few pairs in moments; from many pairs alone it takes long.
        """
        seed = self.settings.seed
        sources = [self._source(*size) for size in self.settings.sizes()] or [self._source()]

        def collate(ids: list[int]) -> RowBatch:
            if not ids:
                return RowBatch(*sources[0].examples(seed, "train", 0, 0))
            # ids are strided (share of a process, part of an update): draw the span, then pick
            source = sources[ids[0] // settings.batch_size % len(sources)]
            tokens, labels = source.examples(seed, "train", ids[0], ids[-1] - ids[0] + 1)
            rows = torch.tensor(ids) - ids[0]
            return RowBatch(tokens[rows], labels[rows])

        return Objective(
            model=model,
            order=lambda step: list(range(step * settings.batch_size, (step + 1) * settings.batch_size)),
            collate=collate,
            count=answer_count,
            loss=lambda model, tensors: answer_loss(model, tensors, settings.label_smoothing),
            validate=lambda model, may_stop: self._score(model, "valid")[1],
        )

    def evaluate(self, model: nn.Module, split: str, **search: Any) -> dict[str, float]:
        """Return the accuracy over all queries, and that of each size if there are several."""
        found = self._score(model, split)[0]
        accuracy, chance = sum(found.values()) / len(found), self.chance
        by_size = found if len(found) > 1 else {}
        return {
            "examples": self.settings.examples * len(found),
            "accuracy": accuracy,
            "scaled_accuracy": scale_accuracy(accuracy, chance),
            **by_size,
            "chance": chance,
        }

    def _score(self, model: nn.Module, split: str) -> tuple[dict[str, float], float]:
        """Return the accuracy at each size, and the mean loss over all queries of a split."""
        found, answers, loss = {}, 0, 0.0
        for length, pairs in self.settings.tested():
            source = self._source(length, pairs)
            score = score_rows(model, RowBatch(*source.examples(self.settings.seed, split, 0, self.settings.examples)))
            found[f"length_{length}_pairs_{pairs}_accuracy"] = score.right / score.answers
            answers, loss = answers + score.answers, loss + score.loss
        return found, loss / answers

    def mistakes(self, model: nn.Module, split: str) -> Mistakes:
        """Return the queries of a few rows whose value was not recalled."""
        rows = min(self.settings.examples, EVAL_BATCH_SIZE)
        return find_mistakes(model, RowBatch(*self._source().examples(self.settings.seed, split, 0, rows)), str)

    def text_input(self, model: nn.Module) -> RecallInput:
        """Return a reader of token ids."""
        return RecallInput(model, self.settings)

    def _source(self, length: int | None = None, pairs: int | None = None) -> Recall:
        own = self.settings
        return Recall(own.vocabulary, length or own.length, pairs or own.pairs, random_fillers=own.random_fillers)


def _read_sizes(name: str, text: str) -> list[tuple[int, int]]:
    """Return [(64, 4), (64, 4), (128, 8)] of 2*64:4,128:8."""
    return list(chain.from_iterable(_read_size(name, part.strip()) for part in text.split(",")))


def _read_size(name: str, part: str) -> list[tuple[int, int]]:
    match = re.fullmatch(r"(?:(\d{1,3})\*)?(\d{1,7}):(\d{1,7})", part)
    if match is None or match[1] == "0":
        raise ValueError(f"{name} must be sizes such as 5*64:4,128:8 (repeat*length:pairs), got {part!r:.100}")
    return [(int(match[2]), int(match[3]))] * int(match[1] or 1)
