"""The interface of prediction: a task implements it; the command line, a server or a notebook calls it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from qkv.decode.sample import check_sampling
from qkv.inference.speculative import Draft

SEARCHES = ("greedy", "beam", "sample")
_USED: dict[str | None, set[str]] = {
    None: set(),
    "greedy": {"search"},
    "beam": {"search", "beams"},
    "sample": {"search", "temperature", "top_k", "top_p", "seed"},
}
"""Search -> options that it uses."""
_SEARCH_OPTIONS = set().union(*_USED.values())


@dataclass(frozen=True)
class PredictOptions:
    """Search options. A task raises ValueError for an option that it cannot use."""

    search: str | None = None
    """greedy, beam or sample; None: the task's default."""
    beams: int = 4
    """Beam width."""
    best: int = 1
    """Answers per input."""
    temperature: float = 1.0
    """Sampling temperature: below 1 more cautious, above 1 more varied."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Sample from the most probable tokens that hold this share of the probability."""
    seed: int = 0
    """Seed of the sampler."""
    tokens: int | None = None
    """Maximum number of tokens to generate; for text only."""
    min_score: float | None = None
    """Least score of an object in a picture; None: the task's default."""
    warn: Callable[[str], None] = lambda message: None
    """Called with a sentence about an input that is predicted all the same."""
    draft: Draft | None = None
    """What proposes tokens that the model then verifies; for text only."""

    def require_beam(self, search: str) -> None:
        """Raise unless this search can return `best` answers."""
        if self.best > 1 and search != "beam":
            raise ValueError(f"--best {self.best} needs --search beam: {search} gives one answer")

    def require_used(self, search: str | None) -> None:
        """Raise for a value that is out of range, or that this search ignores; None: the task does not search."""
        check_sampling(self.temperature, self.top_k, self.top_p)
        used = _USED[search]
        for field in fields(self):
            name, option = field.name, f"--{field.name.replace('_', '-')}"
            if name not in _SEARCH_OPTIONS or name in used or getattr(self, name) == field.default:
                continue
            if search is None:
                raise ValueError(f"{option} has no effect: this task predicts without a search; leave it out")
            needed = "sample" if name in _USED["sample"] else "beam"
            raise ValueError(f"{option} has no effect with --search {search}; it needs --search {needed}")

    def reject_tokens(self, task: str) -> None:
        """Raise if a number of tokens or a draft was given to a task that does not generate text."""
        for name in ("tokens", "draft"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is for runs of task text, and this is a run of task {task}")


class Predictor(ABC):
    """Predict from text: check an input, predict a batch, format a prediction as lines."""

    batch_size: ClassVar[int] = 1024
    """Inputs to read before predicting, so that inputs of similar length share a batch."""
    reads_whole_stdin: ClassVar[bool] = False
    """Whether standard input is one input, not one per line."""
    draws: ClassVar[bool] = False
    """Whether inputs are pictures that `draw` draws the objects of."""
    columns: ClassVar[tuple[str, ...]] = ("input", "answer", "probability")
    """Names of the columns of `rows`."""

    @property
    def reads_pictures(self) -> bool:
        """Whether an input may be the path of a picture: a server must pass no text of a client as an input."""
        return False

    def expand(self, text: str) -> Iterable[str]:
        """Return the inputs that a text stands for: itself, unless it names a folder or file of several inputs."""
        return (text,)

    def problem(self, text: str) -> str | None:
        """Return why this input cannot be predicted, as a sentence; None: it can."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            return f"{text[:40]!r} is not valid UTF-8"
        try:
            self.check(text)
        except ValueError as error:
            return str(error)
        return None

    @abstractmethod
    def check(self, text: str) -> None:
        """Raise ValueError for an input that has no prediction."""

    @abstractmethod
    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return one JSON-ready record per text, with `input` and `error` keys.

        `indices` number the texts over the whole input: sampling is seeded by them.
        """

    @abstractmethod
    def format(self, record: dict[str, Any]) -> str:
        """Return a record as lines of text."""

    def rows(self, record: dict[str, Any]) -> Sequence[tuple[str, ...]]:
        """Return a record as rows of a table; an input without a prediction has one with empty cells."""
        found = [(record["input"], one["text"], _format_probability(one)) for one in record["answers"]]
        return found or [(record["input"], *("" for _ in self.columns[1:]))]

    def draw(self, record: dict[str, Any]) -> str:
        """Return the picture of a record with the objects that were found, as SVG; only if `draws`."""
        raise NotImplementedError

    def to_json(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return records as `--json` prints them."""
        return records

    @abstractmethod
    def failed(self, text: str, error: str) -> dict[str, Any]:
        """Return the record of an input that has no prediction."""

    def stream(self, text: str, index: int) -> Iterator[str | dict[str, Any]]:
        """Yield the output for one input piece by piece, and last its record."""
        (record,) = self.predict([text], [index])
        yield self.format(record)
        yield record


def predict_all(
    predictor: Predictor, texts: Sequence[str], indices: Sequence[int], problem: Callable[[str], str | None]
) -> list[dict[str, Any]]:
    """Return a record per text; one with a problem stops no other."""
    problems = [problem(text) for text in texts]
    good = [number for number, found in enumerate(problems) if found is None]
    predicted = predictor.predict([texts[i] for i in good], [indices[i] for i in good]) if good else []
    found = iter(predicted)
    return [
        next(found) if reason is None else predictor.failed(text, reason)
        for text, reason in zip(texts, problems, strict=True)
    ]


def problem_of(predictor: Predictor, text: str) -> str | None:
    """Return why this input has no prediction; also for a task whose command such an input would end."""
    try:
        predictor.check(text)
    except ValueError as error:
        return str(error)
    return None


def _format_probability(answer: dict[str, Any]) -> str:
    probability = math.exp(answer["log_probability"]) if "log_probability" in answer else answer["probability"]
    return f"{probability:.6g}"


class AnswerPredictor(Predictor):
    """A predictor whose record is {"input", "answers": [{"text", "probability", ...}], "error"}."""

    def __init__(self, best: int):
        self.best = best

    def format(self, record: dict[str, Any]) -> str:
        """Return `input TAB answer` lines, with the probability as a third column when several answers are wanted."""
        lines = []
        for answer in record["answers"]:
            probability = f"\t{answer['probability']:.4f}" if self.best > 1 else ""
            lines.append(f"{record['input']}\t{answer['text']}{probability}\n")
        return "".join(lines)

    def failed(self, text: str, error: str) -> dict[str, Any]:
        """Return a record without answers."""
        return {"input": text, "answers": [], "error": error}
