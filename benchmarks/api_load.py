"""The API under load: `python -m benchmarks.api_load`.

Serves a small text run with fresh weights on 127.0.0.1, in a process of its own, for three parts:

overload   the capacity (as many clients in a closed loop as there are streams), the times of one client alone, then an
           open loop at four times the capacity: goodput, times, refusals, memory
soak       requests of all kinds by many clients, one percent of them broken or canceled; every answer is compared with
           the one that the same request got alone
streams    1,000 streams at once: all complete, tokens per second against one stream at a time, memory

Writes benchmarks/results/api_load_cpu.json; a run replaces only its parts of its kind. In `overload` server and
clients have cores of their own. A soak takes half an hour, the other parts minutes:

    python -m benchmarks.api_load --kind delta
    python -m benchmarks.api_load --kind taylor --parts overload,streams
"""

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.api_client import ApiAnswer, ApiClient, ApiTarget, events_of, make_run, serving_run
from benchmarks.machine import about
from qkv.web.connections import raise_file_limit

RESULTS = Path(__file__).parent / "results" / "api_load_cpu.json"
PARTS = ("overload", "soak", "streams")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORES, CLIENT_CORES = CORES[:1], CORES[1:] or CORES
COMPLETIONS = "/v1/completions"
OVERLOAD = 4
MAX_OUTSTANDING = 256
"""Connections of the open loop, used in turn."""
POOL = 60
"""Different requests of the soak."""
BROKEN = 0.01
DONE = b"data: [DONE]"


def main() -> None:
    """Run the parts, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which parts (default: {','.join(PARTS)})")
    parser.add_argument("--kind", default="delta", help="kind of attention (default: delta)")
    parser.add_argument("--dim", type=int, default=128, help="width of the model (default: 128)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds of overload (default: 120)")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of the soak (default: 30)")
    parser.add_argument("--streams", type=int, default=1000, help="streams at once (default: 1000)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per stream (default: 64)")
    parser.add_argument("--waves", type=int, default=8, help="times that all streams run, after a warm-up (default: 8)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    raise_file_limit(2 * given.streams + 256)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["QKV_CACHE"] = folder
        run = make_run(Path(folder), given.kind, given.dim, given.layers)
        for part in given.parts.split(","):
            found = {"overload": overload, "soak": soak, "streams": streams}[part](run, given)
            print(json.dumps({part: found}, indent=1), flush=True)
            write(given, part, found)


def write(given: argparse.Namespace, part: str, found: dict[str, Any]) -> None:
    """Write a part of a kind into the result file, beside what others have written."""
    settings = f"--kind {given.kind} --dim {given.dim} --layers {given.layers} --parts {part}"
    times = f"--seconds {given.seconds:g} --minutes {given.minutes:g} --streams {given.streams} --tokens {given.tokens}"
    times += f" --waves {given.waves}"
    record = {**about(), "command": f"python -m benchmarks.api_load {settings} {times}", **found}
    result = json.loads(given.result.read_text()) if given.result.exists() else {}
    result.setdefault(given.kind, {})[part] = record
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")


def overload(run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Measure capacity, the open loop, and the capacity again."""
    os.sched_setaffinity(0, CLIENT_CORES)
    rows, waiting = 8, 4
    record = {"prompt": "alpha beta gamma", "max_tokens": 256, "temperature": 0}

    async def measure(target: ApiTarget) -> dict[str, Any]:
        request, probe = target.request(COMPLETIONS, record), min(10.0, given.seconds / 4)
        await closed_loop(target, request, rows, probe / 2)  # warm-up
        alone = describe(*await closed_loop(target, request, 1, probe))
        before = describe(*await closed_loop(target, request, rows, probe))
        memory, client = target.resident_bytes(), process_time()
        rate = OVERLOAD * before["good_per_second"]
        answers, elapsed = await open_loop(target, request, rate, given.seconds)
        client = (process_time() - client) / elapsed
        during, grown = describe(answers, elapsed), target.resident_bytes() / memory
        after = describe(*await closed_loop(target, request, rows, probe))
        capacity = (before["good_per_second"] + after["good_per_second"]) / 2
        return {
            "setting": {"max_streams": rows, "max_waiting": waiting, **record},
            "alone": alone,
            "capacity_per_second": [before["good_per_second"], after["good_per_second"]],
            "offered_per_second": round(rate, 2),
            "during": during,
            "part_of_capacity": round(during["good_per_second"] / capacity, 4),
            "p99_over_alone": round(during["good_p99"] / alone["good_p99"], 3),
            "memory_ratio": round(grown, 4),
            "client_core": round(client, 4),
            "stderr_bytes": target.stderr.stat().st_size,
        }

    with serving_run(run, SERVER_CORES, max_streams=rows, max_waiting=waiting) as target:
        found = asyncio.run(measure(target))
    os.sched_setaffinity(0, CORES)
    return found


async def closed_loop(target: ApiTarget, request: bytes, clients: int, seconds: float) -> tuple[list[ApiAnswer], float]:
    """Let each client ask again as soon as it has a response; return all responses, and the seconds until the last."""
    answers: list[ApiAnswer] = []
    start = perf_counter()

    async def keep_asking() -> None:
        client = ApiClient(target)
        while perf_counter() < start + seconds:
            answers.append(await client.ask(request))
        client.close()

    await asyncio.gather(*(keep_asking() for _ in range(clients)))
    return answers, perf_counter() - start


async def open_loop(target: ApiTarget, request: bytes, rate: float, seconds: float) -> tuple[list[ApiAnswer], float]:
    """Send requests at a fixed rate, whether the last ones were answered or not."""
    answers: list[ApiAnswer] = []
    free = [ApiClient(target) for _ in range(MAX_OUTSTANDING)]
    clients = list(free)

    async def ask_once() -> None:
        client = free.pop(0)
        answers.append(await client.ask(request))
        free.append(client)

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
            if free:
                group.create_task(ask_once())
    elapsed = perf_counter() - start
    for client in clients:
        client.close()
    return answers, elapsed


def describe(answers: list[ApiAnswer], seconds: float) -> dict[str, Any]:
    """Return rates and times by status."""
    statuses = Counter(answer.status for answer in answers)
    good = sorted(answer.seconds for answer in answers if answer.status == 200)
    refused = sorted(answer.seconds for answer in answers if answer.status == 429)
    found: dict[str, Any] = {"statuses": {str(status): count for status, count in sorted(statuses.items())}}
    found["good_per_second"] = round(len(good) / seconds, 3)
    for name, times in (("good", good), ("refused", refused)):
        if times:
            found[f"{name}_median"] = round(times[len(times) // 2], 5)
            found[f"{name}_p99"] = round(times[int(0.99 * len(times))], 5)
    return found


def soak(run: Path, given: argparse.Namespace, clients: int = 24) -> dict[str, Any]:
    """Ask for answers that are known, among broken and canceled requests."""

    async def measure(target: ApiTarget) -> dict[str, Any]:
        asked, counts = make_requests(random.Random(0)), Counter[str]()
        wrong: list[dict[str, Any]] = []
        client = ApiClient(target)
        known = [choices_of(await client.ask(target.request(COMPLETIONS, record))) for record in asked]
        client.close()
        end, samples = perf_counter() + 60 * given.minutes, [target.resident_bytes()]

        async def keep_asking(draw: random.Random) -> None:
            client = ApiClient(target)
            while perf_counter() < end:
                number = draw.randrange(len(asked))
                if draw.random() < BROKEN:
                    counts[await misbehave(client, draw, asked[number])] += 1
                    continue
                stream = draw.random() < 0.5
                answer = await client.ask(target.request(COMPLETIONS, {**asked[number], "stream": stream}))
                counts["streamed" if stream else "whole"] += 1
                if choices_of(answer) != known[number]:
                    wrong.append({"request": asked[number], "status": answer.status, "stream": stream})
            client.close()

        async def watch_memory() -> None:
            while perf_counter() < end:
                await asyncio.sleep(min(5.0, 12 * given.minutes))
                samples.append(target.resident_bytes())

        await asyncio.gather(watch_memory(), *(keep_asking(random.Random(seed)) for seed in range(clients)))
        await asyncio.sleep(1.0)
        return {
            "minutes": given.minutes,
            "clients": clients,
            "requests": dict(sorted(counts.items())),
            "wrong": len(wrong),
            "wrong_examples": wrong[:5],
            "left_in_use": await target.gauges(),
            "resident_mib": [round(samples[i] / 2**20, 1) for i in (0, len(samples) // 4, len(samples) // 2, -1)],
            "stderr_bytes": target.stderr.stat().st_size,
        }

    with serving_run(run, CORES, max_streams=16, max_waiting=256) as target:
        return asyncio.run(measure(target))


def make_requests(draw: random.Random) -> list[dict[str, Any]]:
    """Return different requests with a fixed seed: lengths, searches, stop strings, several choices and prompts."""
    asked = []
    for number in range(POOL):
        prompt = " ".join(draw.choices(("alpha", "beta", "gamma", "theta", "iota"), k=draw.choice((1, 5, 40, 200))))
        record: dict[str, Any] = {"prompt": prompt, "max_tokens": draw.choice((1, 8, 40, 90)), "seed": number}
        record["temperature"] = draw.choice((0, 0.7, 1))
        if draw.random() < 0.3:
            record["stop"] = draw.choice(("a", ["et", "\n"], "lph"))
        if draw.random() < 0.2:
            record["n"] = draw.choice((2, 3))
        if draw.random() < 0.1:
            record["prompt"] = [prompt, "iota"]
        if draw.random() < 0.2:
            record["top_p"] = 0.9
        asked.append(record)
    return asked


def choices_of(answer: ApiAnswer) -> dict[int, list[Any]] | None:
    """Return text and finish reason of each choice; None for an error."""
    if answer.status != 200:
        return None
    is_whole = answer.body.startswith(b"{")
    found: dict[int, list[Any]] = {}
    for record in [json.loads(answer.body)] if is_whole else events_of(answer.body):
        for choice in record.get("choices", []):
            text, _ = found.get(choice["index"], ["", None])
            found[choice["index"]] = [text + choice["text"], choice["finish_reason"]]
    return found


async def misbehave(client: ApiClient, draw: random.Random, record: dict[str, Any]) -> str:
    """Send a broken request, or go away; return its name, with the status of one that should not be there."""
    target, name = client.target, draw.choice(("broken JSON", "wrong field", "not UTF-8", "half a body", "canceled"))
    if name == "half a body":
        await client.send_and_leave(target.request(COMPLETIONS, record)[:-7])
        return name
    if name == "canceled":
        asked = {**record, "max_tokens": 2000, "temperature": 0, "stop": None, "stream": True}
        answer = await client.ask(target.request(COMPLETIONS, asked), until=b"data: ")
        return name if answer.status == 200 else f"{name} {answer.status}"
    bodies = {"broken JSON": b'{"prompt": ', "wrong field": b'{"promt": "a"}', "not UTF-8": b'{"prompt": "\xff"}'}
    answer = await client.ask(target.request(COMPLETIONS, body=bodies[name]))
    return name if answer.status == 400 else f"{name} {answer.status}"


def streams(run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run many streams at once, after a warm-up, and one at a time."""

    async def one(target: ApiTarget, tokens: int) -> tuple[int, ApiAnswer]:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        record = {"prompt": "alpha beta", "max_tokens": tokens, "temperature": 0, **options}
        client = ApiClient(target)
        answer = await client.ask(target.request(COMPLETIONS, record))
        client.close()
        counted = re.search(rb'"completion_tokens": (\d+)', answer.body)
        is_complete = answer.status == 200 and DONE in answer.body and counted is not None
        return int(counted[1]) if is_complete and counted is not None else 0, answer

    async def wave(target: ApiTarget) -> tuple[list[tuple[int, ApiAnswer]], float, int, int]:
        """Return the answers of all streams at once, the seconds, and the memory: the most meanwhile, and then."""
        memory: list[int] = []

        async def watch_memory() -> None:
            while True:
                memory.append(target.resident_bytes())
                await asyncio.sleep(0.1)

        watcher, start = asyncio.create_task(watch_memory()), perf_counter()
        found = await asyncio.gather(*(one(target, given.tokens) for _ in range(given.streams)))
        elapsed = perf_counter() - start
        watcher.cancel()
        await asyncio.sleep(0.2)
        return found, elapsed, max(memory), target.resident_bytes()

    async def measure(target: ApiTarget) -> dict[str, Any]:
        for _ in range(2):  # warm-up
            await wave(target)
        start, alone = perf_counter(), 0
        while perf_counter() < start + min(10.0, given.seconds / 4):
            alone += (await one(target, given.tokens))[0]
        alone_rate = alone / (perf_counter() - start)
        waves = [await wave(target) for _ in range(given.waves)]
        elapsed, peaks, rests = sum(wave[1] for wave in waves), [wave[2] for wave in waves], [wave[3] for wave in waves]
        found = [one for answers, *_ in waves for one in answers]
        rate = sum(count for count, _ in found) / elapsed
        return {
            "streams": given.streams,
            "waves": given.waves,
            "complete": sum(count == given.tokens for count, _ in found),
            "tokens_per_second": round(rate, 1),
            "tokens_per_second_one_at_a_time": round(alone_rate, 1),
            "ratio": round(rate / alone_rate, 2),
            "seconds": round(elapsed, 2),
            "first_token_seconds_max": round(max(answer.first for _, answer in found), 3),
            "peak_mib_by_wave": [round(peak / 2**20, 1) for peak in peaks],
            "rest_mib_by_wave": [round(rest / 2**20, 1) for rest in rests],
            "memory_ratio": round(peaks[-1] / peaks[0], 4),
            "rest_ratio": round(rests[-1] / rests[0], 4),
            "left_in_use": await target.gauges(),
            "stderr_bytes": target.stderr.stat().st_size,
        }

    with serving_run(run, CORES, max_streams=given.streams, max_waiting=16) as target:
        return asyncio.run(measure(target))


if __name__ == "__main__":
    main()
