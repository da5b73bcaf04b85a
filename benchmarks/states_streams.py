"""Many streams of one text model side by side, versus one after the other, on a CPU.

    python -m benchmarks.states_streams

A model of random weights has the speed of a trained one of its sizes. Each stream is a prompt and a number of tokens of
random lengths; it samples with a seed of its own. For N streams at once, 2 N are submitted, at least 200, so that rows
enter and leave all the time. The same requests then run one after the other by `qkv.decode.stream`, as many as a few
seconds allow; their tokens must be equal.

Copying: the share of the time in `select`, `join`, `put` and `compact` of the states. Memory: the largest resident
memory of the process in the rounds of 100 streams after as many for warming up, and in those of 1,000 more.
Writes benchmarks/results/states_streams_cpu.json.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import about
from qkv.decode import SearchLimits, sampler, stream
from qkv.inference.batching import Batcher, Generation, Limits
from qkv.models import Decoder, DecoderConfig, DecoderState

RESULTS = Path(__file__).parent / "results" / "states_streams_cpu.json"
MODEL = {"dim": 64, "heads": 4, "hidden_dim": 256, "layers": 2, "max_length": 256}
TOKENS = 256
KINDS = {"taylor": "rope", "delta+forget+write": "none"}
PROMPT, LENGTH = (1, 32), (16, 64)
COPIES = ("select", "join", "put", "compact")


class Clock:
    """Time spent in the calls of some methods, the outermost counted."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def timed(*arguments: Any) -> Any:
            self._depth += 1
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._depth -= 1
                self.seconds += 0.0 if self._depth else time.perf_counter() - started

        return timed


COPYING = Clock()


class Request:
    """A stream, and the tokens that it gave."""

    def __init__(self, number: int):
        draw = random.Random(number)
        prompt = [draw.randrange(3, TOKENS) for _ in range(draw.randint(*PROMPT))]
        limits = SearchLimits(draw.randint(*LENGTH), start=prompt[-1], end=0, forbidden=(1, 2))
        self.tokens: list[int] = []
        self.generation = Generation(prompt, limits, sampler(seed=number), lambda token, _: self.tokens.append(token))

    def run_alone(self, model: Decoder) -> list[int]:
        """Return the tokens of this prompt alone."""
        given = self.generation
        inputs = torch.tensor([list(given.prompt[:-1])], dtype=torch.int64)
        return [token for token, _ in stream(model, inputs, given.limits, given.choose)]


def make_model(attention: str) -> Decoder:
    """Return a model with random weights."""
    torch.manual_seed(0)
    return Decoder(DecoderConfig(**MODEL, attention=attention, positions=KINDS[attention]), TOKENS).eval()  # type: ignore[arg-type]


def run_together(model: Decoder, rows: int, piece: int, requests: list[Request], each: Callable[[], None]) -> Any:
    """Run the requests, at most `rows` at a time, and return the batcher's statistics."""
    batcher = Batcher(model, Limits(max_rows=rows, max_waiting=len(requests), piece=piece))
    for request in requests:
        batcher.submit(request.generation)
    while batcher.step():
        each()
    return batcher.statistics()


def measure_alone(model: Decoder, requests: list[Request], seconds: float) -> dict[str, float]:
    """Run requests one after the other for so long, and compare their tokens."""
    tokens, equal, count, started = 0, 0, 0, time.perf_counter()
    for request in requests:
        found = request.run_alone(model)
        tokens, count = tokens + len(found), count + 1
        equal += found == request.tokens
        if time.perf_counter() - started > seconds:
            break
    rate = tokens / (time.perf_counter() - started)
    return {"tokens_per_second": round(rate, 1), "streams": count, "streams_with_equal_tokens": equal}


def compare_rates(attention: str, counts: list[int], piece: int, seconds: float) -> dict[str, Any]:
    """Measure tokens per second of each number of streams, and of one at a time before and after."""
    model = make_model(attention)
    found: dict[str, Any] = {}
    run_together(model, 16, piece, [Request(-1 - number) for number in range(16)], lambda: None)  # warm up
    alone = []
    for count in counts:
        requests = [Request(number) for number in range(max(2 * count, 200))]
        if count == 1:
            requests = requests[:20]
        COPYING.seconds, started = 0.0, time.perf_counter()
        statistics = run_together(model, count, piece, requests, lambda: None)
        taken, copying = time.perf_counter() - started, COPYING.seconds
        alone.append(measure_alone(model, requests, seconds))
        found[f"{count} streams"] = {
            "requests": len(requests),
            "tokens_per_second": round(statistics.tokens / taken, 1),
            "alone": alone[-1],
            "speedup": round(statistics.tokens / taken / alone[-1]["tokens_per_second"], 2),
            "copying_share": round(copying / taken, 4),
            "copied_rows_per_token": round(statistics.copied_rows / statistics.tokens, 3),
        }
        print(attention, count, json.dumps(found[f"{count} streams"]), flush=True)
    return found


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure_memory(attention: str, rows: int, piece: int, streams: tuple[int, int, int]) -> dict[str, Any]:
    """Return the peak of resident memory in the rounds of so many streams: warm-up, few, many."""
    model, peaks, number = make_model(attention), [], 0
    for count in streams:
        peak = [0]
        requests = [Request(number + one) for one in range(count)]
        number += count

        def note(peak: list[int] = peak) -> None:
            peak[0] = max(peak[0], resident_bytes())

        statistics = run_together(model, rows, piece, requests, note)
        peaks.append(peak[0])
    return {
        "rows": rows,
        "streams": streams,
        "resident_bytes": peaks,
        "growth": round(peaks[2] / peaks[1] - 1, 4),
        "state_bytes_at_the_end": statistics.state_bytes,
    }


def main() -> None:
    """Compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 100, 1000], help="streams at once")
    parser.add_argument("--piece", type=int, default=512, help="prompt tokens per round (default: 512)")
    parser.add_argument("--seconds", type=float, default=4.0, help="time of one at a time, for each (default: 4)")
    parser.add_argument("--memory", type=int, nargs=3, default=[100, 100, 1000], help="streams: warm-up, few, many")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    for name in COPIES:
        setattr(DecoderState, name, COPYING.wrap(getattr(DecoderState, name)))
    result: dict[str, Any] = {**about(), "command": "python -m benchmarks.states_streams"}
    result["setting"] = {"model": MODEL, "tokens": TOKENS, "weights": "random", "prompt": PROMPT, "length": LENGTH}
    result["setting"] |= {"piece": given.piece, "dtype": "float32", "choice": "sampling, temperature 1"}
    for attention in KINDS:
        rates = compare_rates(attention, given.streams, given.piece, given.seconds)
        memory = measure_memory(attention, min(100, given.memory[1]), given.piece, tuple(given.memory))
        result[attention] = {"rates": rates, "memory": memory}
        print(attention, json.dumps(memory), flush=True)
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
