"""Predict targets for source sequences: greedy or beam search over batches of similar length, and error rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data import Pair, Vocabulary, pad
from qkv.decode import Hypothesis, SearchLimits, beam, greedy
from qkv.inference.progress import track
from qkv.inference.source_text import in_known_case
from qkv.inference.thread_pool import map_threads
from qkv.metrics import cosine, damerau_levenshtein, error_rates, jaccard

MIN_SOURCES_PER_THREAD = 32
"""Minimum number of sources per thread; with fewer, a thread costs more than it saves."""
SINGLE_THREAD_BELOW = 16
"""A batch with fewer sources runs on one torch thread: as fast as several, and faster on a busy machine."""


@dataclass(frozen=True)
class Search:
    """Options of the search for the best targets."""

    beams: int = 1
    """Beam width; 1 is greedy search."""
    n_best: int = 1
    """Hypotheses to return per source."""
    length_penalty: float = 0.0
    """Scores are divided by length ** length_penalty."""


def predict_targets(
    model: nn.Module,
    vocabulary: Vocabulary,
    sources: Sequence[Sequence[str]],
    search: Search,
    batch_size: int = 256,
    threads: int | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each source, in the order of `sources`.

    `vocabulary` encodes the sources. Sources of similar length share a batch. With `threads`, that many batches run at
    once, each on one torch thread; `start` and `step` must then not modify the model.
    """
    ids = [vocabulary.encode(source) for source in sources]
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    device = device_of(model)

    def decode(batch: list[int]) -> list[list[Hypothesis]]:
        inputs, mask = pad([ids[index] for index in batch])
        return _search_batch(model, inputs.to(device), mask.to(device), search)

    batches = _split_batches(order, batch_size, threads or 1)
    if threads is None or (len(batches) == 1 and len(order) >= SINGLE_THREAD_BELOW):
        results = [decode(batch) for batch in track(batches)]
    else:
        results = map_threads(decode, batches, threads)
    found = dict(zip(order, chain.from_iterable(results), strict=True))
    return [found[index] for index in range(len(ids))]


def _split_batches(order: list[int], batch_size: int, threads: int) -> list[list[int]]:
    """Split into batches of equal size, at most `batch_size`, so that all threads get the same work."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    rounds = ceil(len(order) / (threads * batch_size))
    fewest = ceil(len(order) / batch_size)
    balanced = min(rounds * threads, len(order) // MIN_SOURCES_PER_THREAD)
    size = max(ceil(len(order) / max(fewest, balanced, 1)), 1)
    return [order[start : start + size] for start in range(0, len(order), size)]


def search_limits(model: Any) -> SearchLimits:
    """Return the limits of a search: the longest target that the model can generate and, with START, read again."""
    return SearchLimits(max_length=model.config.max_length - 1)


@torch.inference_mode()
def _search_batch(model: Any, inputs: Tensor, mask: Tensor, search: Search) -> list[list[Hypothesis]]:
    limits = search_limits(model)
    if search.beams == 1:
        return [[one] for one in greedy(model, inputs, mask, limits)]
    return beam(
        model, inputs, mask, limits, beams=search.beams, n_best=search.n_best, length_penalty=search.length_penalty
    )


def predict_pairs(
    model: nn.Module, pairs: Sequence[Pair], sources: Vocabulary, targets: Vocabulary, search: Search
) -> list[list[str]]:
    """Return the tokens of the best target for each source; `sources` and `targets` are the vocabularies."""
    model.eval()
    known = set(sources.tokens)
    inputs = [in_known_case(pair.source, known) for pair in pairs]  # the same normalization as for user input
    return [targets.decode(best[0].tokens) for best in predict_targets(model, sources, inputs, search)]


def evaluate_pairs(
    model: nn.Module, pairs: Sequence[Pair], sources: Vocabulary, targets: Vocabulary, search: Search
) -> dict[str, float]:
    """Return error rates against the closest reference, and the mean of three similarities, each to its best reference.

    `sources` and `targets` are the vocabularies of the two sides.
    """
    predictions = predict_pairs(model, pairs, sources, targets, search)
    references = [[list(target) for target in pair.targets] for pair in pairs]
    rates = error_rates(predictions, references)
    scores = {"jaccard": jaccard, "cosine": cosine, "damerau_levenshtein": damerau_levenshtein}
    similarities = {}
    for name, score in scores.items():
        best = [max(score(p, r) for r in options) for p, options in zip(predictions, references, strict=True)]
        similarities[name] = sum(best) / len(pairs)
    return {
        "examples": len(pairs),
        "sequence_error_rate": rates.sequence_error_rate,
        "token_error_rate": rates.token_error_rate,
        **similarities,
    }


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters and buffers."""
    return next(chain(model.parameters(), model.buffers())).device
