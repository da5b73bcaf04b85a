"""The loss of a language model over whole documents, however long, window by window.

    |-------- length --------|
              |------ length -|-------|        each window is moved by `stride`, and what it had already is not counted

So every token is predicted once, with at least length - stride tokens before it where there are so many.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Tokenizer, pad
from qkv.metrics import Perplexity, count_words

IGNORED = -100
TOGETHER = 4096
"""Tokens that are judged at once."""


class Window(NamedTuple):
    """Tokens, and what follows each of them or IGNORED."""

    inputs: list[int]
    targets: list[int]


def measure(
    model: nn.Module,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    length: int,
    stride: int,
    most: int | None = None,
) -> Perplexity:
    """The perplexity of the documents; with `most`, of the first so many tokens and the rest of that document."""
    found = Perplexity()
    held: list[Window] = []
    for document in documents:
        ids = [tokenizer.start, *tokenizer.encode(document), tokenizer.end]
        found += Perplexity(0.0, len(ids) - 1, count_words(document), len(document.encode()))
        for window in windows(ids, length, stride):
            held.append(window)
            if len(held) * length >= TOGETHER:
                found += Perplexity(_lost(model, held, tokenizer.pad))
                held = []
        if most is not None and found.tokens >= most:
            break
    return found + Perplexity(_lost(model, held, tokenizer.pad))


def windows(ids: list[int], length: int, stride: int) -> Iterator[Window]:
    """The windows of one document, each with the targets that no one before it had."""
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be 1 to length={length}, got {stride}")
    last, done = len(ids) - 1, 0
    while done < last:
        end = min(done + (stride if done else length), last)
        begin = max(end - length, 0)
        targets = [IGNORED] * (done - begin) + ids[done + 1 : end + 1]
        yield Window(ids[begin:end], targets)
        done = end


@torch.no_grad()
def _lost(model: nn.Module, held: list[Window], filler: int) -> float:
    if not held:
        return 0.0
    device = next(model.parameters()).device
    inputs, targets = (
        pad([window[side] for window in held], value)[0].to(device) for side, value in ((0, filler), (1, IGNORED))
    )
    wanted: Tensor = targets != IGNORED
    logits = model(inputs, at=wanted)
    return float(functional.cross_entropy(logits.float(), targets[wanted], reduction="sum"))
