"""The prefix cache: its bound, its hit rate, and the time to the first token.

    python -m benchmarks.states_prefix

Prompts with a few shared prefixes, the popular ones more often, go through a cache of 64 MiB; after each its bytes are
read. Then prompts of one prefix of 4,096 tokens and 16 tokens of their own are prefilled in turns: with the cache, in
the same pieces without it, and as a whole by `model.start`, which is the fastest way without a cache. The time to the
first token includes its choice. Every tenth state is compared with that of an empty cache, bit by bit.
Writes benchmarks/results/states_prefix_cpu.json.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import about
from qkv.inference.prefix_cache import PrefixCache
from qkv.models import Decoder, DecoderConfig

RESULTS = Path(__file__).parent / "results" / "states_prefix_cpu.json"
KINDS = ("softmax", "taylor", "delta+forget+write", "linear,softmax")
VOCABULARY, PREFIX, OWN, MOST_OWN = 2000, 4096, 16, 160
LENGTHS = (4096, 256, 1024, 512, 2048, 384, 4096, 768, 1536, 3072)
"""Tokens of the shared prefixes, the most popular first."""
BAR = 5.0


def make_model(attention: str, dim: int, layers: int) -> Decoder:
    """Return a random model; its weights make no difference to the time."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"dim": dim, "heads": 4, "hidden_dim": 4 * dim, "layers": layers}
    return Decoder(
        DecoderConfig(**sizes, attention=attention, positions="rope", max_length=2 * PREFIX), VOCABULARY
    ).eval()


def tokens(count: int, seed: int) -> list[int]:
    """Return random ids."""
    draw = random.Random(seed)
    return [draw.randrange(4, VOCABULARY) for _ in range(count)]


def share_prefixes(model: Decoder, prompts: int, max_bytes: int) -> dict[str, Any]:
    """Return what a cache of this size is worth over many prompts; raise if it passes its bound or gives other bits."""
    cache, draw = PrefixCache(model, max_bytes), random.Random(2)
    prefixes = [tokens(length, 100 + number) for number, length in enumerate(LENGTHS)]
    popularity = [1 / (rank + 1) for rank in range(len(prefixes))]
    largest = 0
    for number in range(prompts):
        (prefix,) = draw.choices(prefixes, popularity)
        ids = prefix + tokens(draw.randrange(1, MOST_OWN), 1000 + number)
        last: Any = None
        for state in cache.pieces(ids):
            last = state
            largest = max(largest, cache.statistics().bytes)
        if number % 10 == 0 and len(ids) < PREFIX // 4:
            require_same_bits(last, PrefixCache(model, 0).start(ids))
    if largest > max_bytes:
        raise SystemExit(f"the cache held {largest} bytes, with a bound of {max_bytes}")
    found = cache.statistics()
    return {
        "prompts": prompts,
        "bound": max_bytes,
        "largest": largest,
        "hit_rate": round(found.hits / prompts, 3),
        "share_of_tokens_reused": round(found.tokens_reused / (found.tokens_reused + found.tokens_prefilled), 3),
        "evictions": found.evictions,
    }


def require_same_bits(state: Any, expected: Any) -> None:
    """Raise if two states differ in one bit."""
    found, other = state.tensors(), expected.tensors()
    if wrong := [name for name in found if not torch.equal(found[name], other[name])]:
        raise SystemExit(f"a hit and a miss differ in {wrong}")


def time_first_token(model: Decoder, rounds: int, max_bytes: int) -> dict[str, Any]:
    """Return median milliseconds to the first token after a long prefix, with and without the cache."""
    cache, prefix = PrefixCache(model, max_bytes), tokens(PREFIX, 1)
    for number in range(2):  # the second leaves its sums where the prompts part
        cache.start(prefix + tokens(OWN, 10 + number))
    ways: dict[str, Callable[[list[int]], Any]] = {
        "cache": cache.start,
        "pieces": PrefixCache(model, 0).start,
        "whole": lambda ids: model.start(torch.tensor([ids]), None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        ids = prefix + tokens(OWN, 50 + number)
        for name, start in ways.items():
            started = time.perf_counter()
            with torch.inference_mode():
                logits, _ = model.step(torch.tensor(ids[-1:]), start(ids[:-1]))
                int(logits.argmax())
            seconds[name].append(1e3 * (time.perf_counter() - started))
    medians = {name: round(statistics.median(times), 2) for name, times in seconds.items()}
    fastest = min(medians["pieces"], medians["whole"])
    return {"milliseconds": medians, "speedup": round(fastest / medians["cache"], 1)}


def main() -> None:
    """Measure, write, print; exit with 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=1000, help="prompts of each kind (default: 1,000)")
    parser.add_argument("--rounds", type=int, default=7, help="timed prompts of each kind (default: 7)")
    parser.add_argument("--mebibytes", type=int, default=64, help="bound of the cache (default: 64)")
    parser.add_argument("--dim", type=int, default=128, help="width of the models (default: 128)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the models (default: 2)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    max_bytes = given.mebibytes * 2**20
    result: dict[str, Any] = {**about(), "command": "python -m benchmarks.states_prefix"}
    result["setting"] = {"dim": given.dim, "layers": given.layers, "heads": 4, "dtype": "float32", "prefix": PREFIX}
    result["kinds"] = {}
    for attention in KINDS:
        model = make_model(attention, given.dim, given.layers)
        found = {**share_prefixes(model, given.prompts, max_bytes), **time_first_token(model, given.rounds, max_bytes)}
        result["kinds"][attention] = found
        print(attention, json.dumps(found), flush=True)
    result["passed"] = all(found["speedup"] >= BAR for found in result["kinds"].values())
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    if not result["passed"]:
        raise SystemExit(f"time to first token: less than {BAR} times faster")


if __name__ == "__main__":
    main()
