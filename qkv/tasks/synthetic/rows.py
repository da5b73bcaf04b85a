"""Rows of tokens with answers at some places: the batch, its loss, its score, and the random numbers of an example."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn
from torch.nn import functional

from qkv.draw import Example, Mistakes, ReportAnswer
from qkv.errors import unknown_name_error
from qkv.inference.progress import track
from qkv.random import derive_seed, uniforms
from qkv.train.objective import Tensors

IGNORE_INDEX = -100
"""Target of a place without an answer; `torch.nn.functional.cross_entropy` ignores it by default."""
EVAL_BATCH_SIZE = 64
MAX_MISTAKES = 50
FIRST_NUMBER = {"train": 0, "valid": 2**40, "test": 2**41}
"""Split -> number of its first example."""
MOST_EXAMPLES = 2**40


class RowBatch(NamedTuple):
    """Rows of tokens and their answers, each (batch, time)."""

    input_ids: Tensor
    target_ids: Tensor
    """The token to predict after each place; IGNORE_INDEX where nothing is asked."""


class RowScore(NamedTuple):
    """Sums over the answers of some rows."""

    answers: int
    right: int
    rows: int
    right_rows: int
    """Rows whose answers are all right."""
    loss: float


@dataclass(frozen=True)
class Draws:
    """Random numbers of some examples; those of an example depend on the seed, the purpose and its number alone."""

    seed: int
    purpose: str
    numbers: Int64[Tensor, " examples"]

    def uniform(self, what: str, width: int) -> Float64[Tensor, "examples width"]:
        """Return `width` numbers in [0, 1) per example."""
        key = derive_seed(self.seed, f"{self.purpose} {what}", width)
        return uniforms(key, self.numbers[:, None] * width + torch.arange(width))

    def integers(self, what: str, width: int, count: int) -> Int64[Tensor, "examples width"]:
        """Return `width` uniform integers below `count` per example."""
        return (self.uniform(what, width) * count).long()


def split_numbers(split: str, index: int, count: int) -> Int64[Tensor, " count"]:
    """Return the numbers of the examples `index` to `index + count - 1` of a split; no two splits share a number."""
    if split not in FIRST_NUMBER:
        raise unknown_name_error("split", split, FIRST_NUMBER)
    if index < 0 or count < 0 or index + count > MOST_EXAMPLES:
        raise ValueError(f"index and count must be at least 0 and end before 2**40, got {index} and {count}")
    return FIRST_NUMBER[split] + torch.arange(index, index + count)


def pad_rows(batches: Iterable[RowBatch]) -> RowBatch:
    """Return one batch of all rows; shorter ones end in token 0, where nothing is asked."""
    batches = list(batches)
    longest = max(batch.input_ids.shape[1] for batch in batches)

    def pad(tensor: Tensor, value: int) -> Tensor:
        return functional.pad(tensor, (0, longest - tensor.shape[1]), value=value)

    tokens = [pad(batch.input_ids, 0) for batch in batches]
    return RowBatch(torch.cat(tokens), torch.cat([pad(batch.target_ids, IGNORE_INDEX) for batch in batches]))


def require_readable(model: nn.Module, length: int) -> None:
    """Raise if the rows of a test are longer than the model takes."""
    longest = getattr(getattr(model, "config", None), "max_length", length)
    if length > longest:
        raise ValueError(
            f"rows of {length} tokens exceed model.max_length={longest}: --set model.max_length={length}, "
            "or choose smaller sizes to train and test"
        )


def last_answers(batch: RowBatch) -> RowBatch:
    """Return the batch with only the last answer of each row."""
    asked = batch.target_ids != IGNORE_INDEX
    later = asked.flip(1).cumsum(1).flip(1)  # answers from each place on
    return batch._replace(target_ids=batch.target_ids.masked_fill(later != 1, IGNORE_INDEX))


def answer_count(tensors: Tensors) -> int:
    """Return the number of answers of a batch."""
    return int((RowBatch(*tensors).target_ids != IGNORE_INDEX).sum())


def answer_loss(model: nn.Module, tensors: Tensors, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy summed over the answers."""
    batch = RowBatch(*tensors)
    asked = batch.target_ids != IGNORE_INDEX
    logits, targets = model(batch.input_ids, at=asked), batch.target_ids[asked]
    return functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)


@torch.inference_mode()
def score_rows(model: nn.Module, rows: RowBatch) -> RowScore:
    """Return how many answers are right, and their loss."""
    model.eval()
    device = next(model.parameters()).device
    total = torch.zeros(4, dtype=torch.float64)
    batches = zip(*(tensor.to(device).split(EVAL_BATCH_SIZE) for tensor in rows), strict=True)
    for tokens, targets in track(list(batches)):
        asked = targets != IGNORE_INDEX
        logits = model(tokens, at=asked)
        right = logits.argmax(-1) == targets[asked]
        wrong_rows = asked.nonzero()[:, 0][~right].unique()
        loss = functional.cross_entropy(logits, targets[asked], reduction="sum")
        counts = (len(right), int(right.sum()), len(tokens) - len(wrong_rows), float(loss))
        total += torch.tensor(counts, dtype=torch.float64)
    answers, right_answers, right_rows, loss_sum = total.tolist()
    return RowScore(int(answers), int(right_answers), len(rows.input_ids), int(right_rows), loss_sum)


@torch.inference_mode()
def find_mistakes(model: nn.Module, rows: RowBatch, name: Callable[[int], str]) -> Mistakes:
    """Return the answers of at most EVAL_BATCH_SIZE rows that the model has wrong."""
    tokens, targets = (tensor[:EVAL_BATCH_SIZE] for tensor in rows)
    asked = targets != IGNORE_INDEX
    device = next(model.parameters()).device
    best, predicted = model.eval()(tokens.to(device), at=asked.to(device)).float().softmax(-1).cpu().max(-1)
    wrong = (predicted != targets[asked]).nonzero()[:, 0].tolist()
    places = asked.nonzero().tolist()
    shown = [
        Example(
            f"{name(int(tokens[row, place]))} at position {place} of row {row}",
            [ReportAnswer(name(int(predicted[index])), float(best[index]))],
            [name(int(targets[row, place]))],
        )
        for index in wrong[:MAX_MISTAKES]
        for row, place in (places[index],)
    ]
    return Mistakes(shown, len(wrong), len(places))
