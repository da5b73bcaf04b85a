"""Mapping strings to strings: examples from pairs, their loss, their evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Buckets, Pair, Ragged, Vocabulary, pad
from qkv.decode import Hypothesis, Limits, beam, greedy
from qkv.inference.source_text import in_known_case
from qkv.inference.thread_pool import side_by_side
from qkv.metrics import cosine, damerau_levenshtein, error_rates, jaccard
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

FEWEST = 32
"""Sources for which a thread of their own pays."""
FEW = 16
"""Sources for which one thread does as well as several of torch's, and better where a core is busy."""


@dataclass(frozen=True)
class Strings:
    """Pairs in three parts, and the vocabularies of the first."""

    parts: dict[str, list[Pair]]
    """"train", "valid" and "test"."""
    sources: Vocabulary
    targets: Vocabulary

    @classmethod
    def build(cls, parts: dict[str, list[Pair]]) -> "Strings":
        """Vocabularies from the training part alone."""
        train = parts["train"]
        targets = Vocabulary.build(target for pair in train for target in pair.targets)
        return cls(parts, Vocabulary.build(pair.source for pair in train), targets)


def hold_out(pairs: list[Pair], count: int) -> tuple[list[Pair], list[Pair]]:
    """The pairs without, and only with, the `count` sources of smallest hash: the same ones whatever the order."""
    ranked = sorted(pairs, key=lambda pair: blake2b("\0".join(pair.source).encode(), digest_size=8).digest())
    held = {pair.source for pair in ranked[:count]}
    return [p for p in pairs if p.source not in held], [p for p in pairs if p.source in held]


def make_objective(model: nn.Module, strings: Strings, settings: Settings) -> Objective:
    """The job of fitting the training part; every (source, target) is an example."""
    encoded = encode(strings, strings.parts["train"])
    buckets = Buckets([(len(source), len(target)) for source, target in encoded], settings.batch_size, settings.seed)
    examples = Examples(encoded)
    valid = encode(strings, strings.parts["valid"])
    order = sorted(range(len(valid)), key=lambda number: (len(valid[number][0]), len(valid[number][1])))
    chunks = [order[start : start + 256] for start in range(0, len(order), 256)]

    def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
        total = tokens = 0.0
        for chunk in chunks:
            may_stop()
            tensors = tuple(t.to(device_of(model)) for t in collate([valid[number] for number in chunk]))
            total += float(loss(model, tensors, 0.0))
            tokens += count(tensors)
        return total / tokens

    return Objective(
        model=model,
        order=lambda step: buckets.batch(*buckets.at(step)),
        collate=examples.batch,
        count=count,
        loss=lambda model, tensors: loss(model, tensors, settings.label_smoothing),
        validate=validate,
    )


Example = tuple[list[int], list[int]]


def encode(strings: Strings, pairs: Sequence[Pair]) -> list[Example]:
    """Ids of each source with each of its targets."""
    return [(strings.sources.encode(p.source), strings.targets.encode(t)) for p in pairs for t in p.targets]


class Examples:
    """Sources and targets, from which batches are cut: put together one by one they would keep a GPU waiting."""

    def __init__(self, examples: list[Example]):
        self._sources = Ragged([source for source, _ in examples])
        self._given = Ragged([[Vocabulary.START, *target] for _, target in examples])
        self._wanted = Ragged([[*target, Vocabulary.END] for _, target in examples])

    def batch(self, numbers: Sequence[int]) -> Tensors:
        """(source, its mask, START + target, target + END), padded."""
        return *self._sources.rows(numbers), self._given.rows(numbers)[0], self._wanted.rows(numbers)[0]


def collate(examples: list[Example]) -> Tensors:
    """All of these examples as one batch."""
    return Examples(examples).batch(range(len(examples)))


def count(tensors: Tensors) -> int:
    """Target tokens, END among them."""
    return int((tensors[3] != Vocabulary.PAD).sum())


def loss(model: nn.Module, tensors: Tensors, smoothing: float) -> Tensor:
    """Cross entropy, summed over the target tokens."""
    source, mask, given, wanted = tensors
    return cross_entropy(model(source, given, mask), wanted, smoothing)


def cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
    """The same of logits (batch, time, tokens)."""
    return functional.cross_entropy(
        logits.flatten(0, 1),
        wanted.flatten(),
        ignore_index=Vocabulary.PAD,
        reduction="sum",
        label_smoothing=smoothing,
    )


@dataclass(frozen=True)
class Search:
    """How to decode."""

    beams: int = 1
    """1 is greedy."""
    best: int = 1
    """Answers a source."""
    length_power: float = 0.0
    """What scores are divided by: length to this power."""


def answer(
    model: nn.Module,
    strings: Strings,
    sources: Sequence[Sequence[str]],
    search: Search,
    batch_size: int = 256,
    threads: int | None = None,
) -> list[list[Hypothesis]]:
    """The best answers to each source, in its order; sources of like length are decoded together.

    With `threads`, that many batches at a time, each on one thread of torch's, and so is a single batch if it is small;
    then `start` and `step` must not change the model.
    """
    ids = [strings.sources.encode(source) for source in sources]
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]))

    def decode(chunk: list[int]) -> list[list[Hypothesis]]:
        inputs, mask = (t.to(device_of(model)) for t in pad([ids[number] for number in chunk]))
        return _decode(model, inputs, mask, search)

    chunks = _cut(order, batch_size, threads or 1)
    plain = threads is None or (len(chunks) == 1 and len(order) >= FEW)
    answers = map(decode, chunks) if plain else side_by_side(decode, chunks, threads or 1)
    found = dict(zip(order, chain.from_iterable(answers), strict=True))
    return [found[number] for number in range(len(ids))]


def _cut(order: list[int], batch_size: int, threads: int) -> list[list[int]]:
    """Pieces of like size, at most `batch_size`: as many as give each thread as much to do, but none too small."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    rounds = ceil(len(order) / (threads * batch_size))
    pieces = max(ceil(len(order) / batch_size), min(rounds * threads, len(order) // FEWEST), 1)
    size = max(ceil(len(order) / pieces), 1)
    return [order[start : start + size] for start in range(0, len(order), size)]


def limits_of(model: Any) -> Limits:
    """How long an answer may be: as long as the model can write and, with START, read again, ended or not."""
    return Limits(max_length=model.config.max_length - 1)


@torch.inference_mode()
def _decode(model: Any, inputs: Tensor, mask: Tensor, search: Search) -> list[list[Hypothesis]]:
    limits = limits_of(model)
    if search.beams == 1:
        return [[one] for one in greedy(model, inputs, mask, limits)]
    return beam(model, inputs, mask, limits, beams=search.beams, best=search.best, length_power=search.length_power)


def evaluate(model: nn.Module, strings: Strings, part: str, search: Search) -> dict[str, float]:
    """Error rates against the closest reference, and the three similarities, each to the reference most like it."""
    pairs = strings.parts[part]
    model.eval()
    known = set(strings.sources.tokens)
    sources = [in_known_case(pair.source, known) for pair in pairs]  # as whoever asks it is answered
    answers = [strings.targets.decode(best[0].tokens) for best in answer(model, strings, sources, search)]
    references = [[list(target) for target in pair.targets] for pair in pairs]
    rates = error_rates(answers, references)
    scores = {"jaccard": jaccard, "cosine": cosine, "damerau_levenshtein": damerau_levenshtein}
    similarities = {
        name: sum(max(score(a, r) for r in rs) for a, rs in zip(answers, references, strict=True)) / len(pairs)
        for name, score in scores.items()
    }
    return {
        "examples": len(pairs),
        "sequence_error_rate": rates.sequence_error_rate,
        "token_error_rate": rates.token_error_rate,
        **similarities,
    }


def device_of(model: nn.Module) -> torch.device:
    """Where its numbers are."""
    return next(chain(model.parameters(), model.buffers())).device
