"""The loss of a language model over whole documents of any length, window by window.

    |-------- length --------|
              |------ length -|-------|        each window moves by `stride`; tokens seen before are not counted again

So every token is predicted once, with at least length - stride tokens of context where the document has them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Tokenizer, pad
from qkv.inference.progress import track
from qkv.metrics import Perplexity, count_words

IGNORE_INDEX = -100
"""Target of a position that has no loss, as in torch's cross entropy."""
TOKENS_PER_BATCH = 4096
"""Tokens per forward pass."""


class EvalWindow(NamedTuple):
    """Inputs, and the next token of each or IGNORE_INDEX."""

    inputs: list[int]
    targets: list[int]


def measure_perplexity(
    model: nn.Module,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    length: int,
    stride: int,
    max_tokens: int | None = None,
) -> Perplexity:
    """Return the perplexity of the documents; with `max_tokens`, stop after the document that reaches it."""
    found = Perplexity()
    waiting: list[EvalWindow] = []
    for document in track(documents):
        ids = [tokenizer.start, *tokenizer.encode(document), tokenizer.end]
        found += Perplexity(0.0, len(ids) - 1, count_words(document), len(document.encode()))
        for window in sliding_windows(ids, length, stride):
            waiting.append(window)
            if len(waiting) * length >= TOKENS_PER_BATCH:
                found += Perplexity(_summed_loss(model, waiting, tokenizer.pad))
                waiting = []
        if max_tokens is not None and found.tokens >= max_tokens:
            break
    return found + Perplexity(_summed_loss(model, waiting, tokenizer.pad))


def sliding_windows(ids: list[int], length: int, stride: int) -> Iterator[EvalWindow]:
    """Yield the windows of one document, each with the targets that no earlier window had."""
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be 1 to length={length}, got {stride}")
    last, done = len(ids) - 1, 0
    while done < last:
        end = min(done + (stride if done else length), last)
        begin = max(end - length, 0)
        targets = [IGNORE_INDEX] * (done - begin) + ids[done + 1 : end + 1]
        yield EvalWindow(ids[begin:end], targets)
        done = end


@torch.no_grad()
def _summed_loss(model: nn.Module, windows: list[EvalWindow], padding: int) -> float:
    if not windows:
        return 0.0
    device = next(model.parameters()).device
    inputs = pad([window.inputs for window in windows], padding)[0].to(device)
    targets = pad([window.targets for window in windows], IGNORE_INDEX)[0].to(device)
    counted: Tensor = targets != IGNORE_INDEX
    logits = model(inputs, at=counted)
    return float(functional.cross_entropy(logits.float(), targets[counted], reduction="sum"))
