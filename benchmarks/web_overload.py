"""The local server under overload and half-open connections: `python -m benchmarks.web_overload`.

Starts `qkv serve pronounce` twice, on 127.0.0.1. The first server answers questions (a beam search over a word) of two
clients in a closed loop, which is its capacity; of 32 clients; and of an open loop at four times the capacity. Each is
measured between two measurements of the capacity, in short rounds, since other programs may load the machine. Server
and clients run on different cores. The
second may open 256 files, and gets 1,000 connections that send half a header and are opened again when it closes them;
meanwhile another client asks for the page. Writes benchmarks/results/web_overload_cpu.json.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.machine import about

RESULTS = Path(__file__).parent / "results" / "web_overload_cpu.json"
FEW, MANY = 2, 32
OVERLOAD = 4
HALF_OPEN, FILES = 1000, 256
MAX_OUTSTANDING = 64
"""Connections of the open loop, used in turn."""


CORES = sorted(os.sched_getaffinity(0))
SERVER_CORES, CLIENT_CORES = CORES[:1], CORES[1:] or CORES
"""The server and the clients have cores of their own, or the clients would take the time that they measure."""


def main() -> None:
    """Measure, write, print."""
    os.sched_setaffinity(0, CLIENT_CORES)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="Seconds of each measurement (default: 2).")
    parser.add_argument("--rounds", type=int, default=12, help="Rounds (default: 12).")
    parser.add_argument("--out", type=Path, default=RESULTS, help="Result file.")
    given = parser.parse_args()
    with serving() as target:
        rounds = [asyncio.run(measure_round(target, given.seconds)) for _ in range(given.rounds)]
    with serving(files=FILES) as target:
        half_open = asyncio.run(measure_half_open(target, 15))
    result = {**about(), "command": "python -m benchmarks.web_overload", **summarize(rounds), "half_open": half_open}
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("goodput", "half_open")}, indent=1))


class Target:
    """A server in another process."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path):
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        self.process, self.stderr = process, stderr
        self.port = int(address.split(":")[2].split("/")[0])
        self.token = address.partition("token=")[2]
        self._random = random.Random(0)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return a request as bytes."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncookie: qkv-{self.port}={self.token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def question(self) -> bytes:
        """Return a question that was not asked before."""
        word = "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=8))
        return self.request("POST", "/api/search", json.dumps({"text": word, "beams": 4}).encode())

    def open_files(self) -> int:
        """Return the number of the server's open descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def serving(files: int | None = None) -> Iterator[Target]:
    """Run `qkv serve pronounce` in a process that may open so many files."""

    def limit() -> None:
        os.sched_setaffinity(0, SERVER_CORES)
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with tempfile.TemporaryDirectory() as folder:
        stderr = Path(folder) / "stderr"
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", "serve", "pronounce"],
            stdout=subprocess.PIPE,
            stderr=stderr.open("w"),
            text=True,
            preexec_fn=limit,  # noqa: PLW1509 - this process has one thread
        )
        try:
            yield Target(process, stderr)
        finally:
            process.terminate()
            process.wait(20)


class Client:
    """One keep-alive connection."""

    def __init__(self, target: Target):
        self.target = target
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, float]:
        """Return status and seconds of one request."""
        start = perf_counter()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.target.port)
        reader, writer = self.streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        return int(head[9:12]), perf_counter() - start

    def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def closed_loop(target: Target, clients: int, seconds: float) -> dict[str, Any]:
    """Let each client ask again as soon as it has a response, whatever that is."""
    answers: list[tuple[int, float]] = []
    end = perf_counter() + seconds

    async def keep_asking() -> None:
        client = Client(target)
        while perf_counter() < end:
            answers.append(await client.ask(target.question()))
        client.close()

    start = perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(clients)))
    return describe(answers, perf_counter() - start)


async def open_loop(target: Target, rate: float, seconds: float) -> dict[str, Any]:
    """Send requests at a fixed rate, whether the last ones were answered or not."""
    answers: list[tuple[int, float]] = []
    free = [Client(target) for _ in range(MAX_OUTSTANDING)]
    clients = list(free)

    async def ask_once() -> None:
        client = free.pop(0)
        answers.append(await client.ask(target.question()))
        free.append(client)

    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
            group.create_task(ask_once())
    elapsed = perf_counter() - start
    for client in clients:
        client.close()
    return {"offered_per_second": round(rate, 2), **describe(answers, elapsed)}


def describe(answers: list[tuple[int, float]], seconds: float) -> dict[str, Any]:
    """Return rates and times by status."""
    good = [elapsed for status, elapsed in answers if status == 200]
    rejected = sorted(elapsed for status, elapsed in answers if status == 429)
    assert len(good) + len(rejected) == len(answers)
    found = {"good_per_second": len(good) / seconds, "rejected_per_second": len(rejected) / seconds}
    found["good_seconds"] = median(good)
    if rejected:
        found["rejected_milliseconds"] = 1000 * median(rejected)
        found["rejected_milliseconds_p99"] = 1000 * rejected[int(0.99 * len(rejected))]
    return {name: round(value, 4) for name, value in found.items()}


async def measure_round(target: Target, seconds: float) -> dict[str, Any]:
    """Measure both overloads, each between two measurements of the capacity."""
    first = await closed_loop(target, FEW, seconds)
    many = await closed_loop(target, MANY, seconds)
    second = await closed_loop(target, FEW, seconds)
    open_ = await open_loop(target, OVERLOAD * second["good_per_second"], seconds)
    third = await closed_loop(target, FEW, seconds)
    few = [one["good_per_second"] for one in (first, second, third)]
    return {
        "capacity_per_second": few,
        "closed": {**many, "part_of_capacity": round(2 * many["good_per_second"] / (few[0] + few[1]), 4)},
        "open": {**open_, "part_of_capacity": round(2 * open_["good_per_second"] / (few[1] + few[2]), 4)},
    }


def summarize(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the rounds, and the rounds."""
    return {
        "goodput": {
            "capacity_per_second": median(rate for one in rounds for rate in one["capacity_per_second"]),
            f"closed_loop_of_{MANY}": median(one["closed"]["part_of_capacity"] for one in rounds),
            f"open_loop_{OVERLOAD}x": median(one["open"]["part_of_capacity"] for one in rounds),
        },
        "rounds": rounds,
    }


async def measure_half_open(target: Target, seconds: float, connections: int = HALF_OPEN) -> dict[str, Any]:
    """Hold half-open connections, and ask for the page meanwhile."""
    end = perf_counter() + seconds
    opened = 0

    async def hold() -> None:
        nonlocal opened
        while perf_counter() < end:
            opened += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                writer.write(target.request("GET", "/")[:60])
                await asyncio.wait_for(reader.read(), max(0.0, end - perf_counter()))
                writer.close()
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(1.0)

    attackers = [asyncio.create_task(hold()) for _ in range(connections)]
    times, failed, files = [], 0, 0
    while perf_counter() < end:
        client = Client(target)
        try:
            status, elapsed = await asyncio.wait_for(client.ask(target.request("GET", "/")), 10)
            failed += status != 200
            times.append(elapsed)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            failed += 1
        client.close()
        files = max(files, target.open_files())
        await asyncio.sleep(0.1)
    await asyncio.gather(*attackers)
    return {
        "connections": connections,
        "opened": opened,
        "file_limit": FILES,
        "most_open_files": files,
        "asked": len(times) + failed,
        "failed": failed,
        "median_milliseconds": round(1000 * median(times), 2),
        "slowest_milliseconds": round(1000 * max(times), 1),
        "stderr_bytes": target.stderr.stat().st_size,
    }


if __name__ == "__main__":
    main()
