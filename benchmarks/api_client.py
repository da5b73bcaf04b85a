"""A server of `qkv serve --api` in another process, and clients that cost little: for `benchmarks.api_load`."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from qkv import runs, tasks
from qkv.train import Loop, create_run

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu")
MAX_LENGTH = 4096


class ApiAnswer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes
    seconds: float
    first: float
    """Seconds until the first byte of the body."""


def make_run(folder: Path, kind: str, dim: int, layers: int) -> Path:
    """Write a text run of this kind whose weights are those of two training steps; speed does not depend on them."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join(WORDS[(n * 3 + i * i) % 12] for i in range(40)) for n in range(60)))
    model = {"dim": dim, "heads": 4, "hidden_dim": 4 * dim, "layers": layers, "dropout": 0.0, "attention": kind}
    changes: dict[str, dict[str, Any]] = {
        "model": {**model, "max_length": MAX_LENGTH},
        "train": {"steps": 2, "batch_size": 4, "warmup": 1, "validate_every": 2},
        "data": {"source": str(corpus), "tokenizer": "bytes", "size": 512, "length": 32},
    }
    config = runs.configure("text", runs.preset("text", None), changes)
    task = tasks.tasks["text"].load(config.data)
    run = create_run(folder / f"text-{kind}")
    runs.save_config(run, config, task)
    Loop(task.objective(runs.build(config, task), config.train), config.train, run).train()
    return run.folder


class ApiTarget:
    """The server's address, process and memory."""

    def __init__(self, process: "subprocess.Popen[str]", stderr: Path):
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}{stderr.read_text()}")
        self.process, self.stderr, self.port = process, stderr, int(found[1])

    def request(self, path: str, record: dict[str, Any] | None = None, body: bytes | None = None) -> bytes:
        """Return a request as bytes: POST with a body, else GET."""
        data = json.dumps(record).encode() if record is not None else body
        head = f"{'GET' if data is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
        if data is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        return head.encode() + b"\r\n" + (data or b"")

    def resident_bytes(self) -> int:
        """Return the server's resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def gauges(self) -> dict[str, float]:
        """Return waiting, running and state bytes."""
        client = ApiClient(self)
        text = (await client.ask(self.request("/metrics"))).body.decode()
        client.close()
        return {
            name: float(value)
            for name, value in re.findall(r"^(qkv_(?:waiting|running|state_bytes)) (\S+)$", text, re.M)
        }


@contextmanager
def serving_run(run: Path, cores: list[int], **options: float) -> Iterator[ApiTarget]:
    """Serve a run in a process on these cores."""
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "qkv", "serve", "--api", str(run), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        stderr = Path(folder) / "stderr"
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr.open("w"),
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - this process has one thread
        )
        try:
            yield ApiTarget(process, stderr)
        finally:
            process.terminate()
            process.wait(20)


class ApiClient:
    """One keep-alive connection."""

    def __init__(self, target: ApiTarget):
        self.target = target
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes, until: bytes | None = None) -> ApiAnswer:
        """Return the response; with `until`, go away after these bytes of a stream."""
        start = perf_counter()
        reader, writer = await self._connect()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None:
            whole = await reader.readexactly(int(length[1]))
            return ApiAnswer(status, whole, perf_counter() - start, perf_counter() - start)
        body, first = bytearray(), 0.0
        while not body.endswith(b"0\r\n\r\n"):
            piece = await reader.read(65536)
            first = first or perf_counter() - start
            body += piece
            if not piece or (until is not None and until in body):
                self.close()
                break
        return ApiAnswer(status, bytes(body), perf_counter() - start, first)

    async def send_and_leave(self, data: bytes) -> None:
        """Send something, and close the connection without waiting."""
        _, writer = await self._connect()
        writer.write(data)
        await writer.drain()
        self.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.streams is None or self.streams[0].at_eof():
            self.close()
            self.streams = await asyncio.open_connection("127.0.0.1", self.target.port)
        return self.streams

    def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the records of a stream of server-sent events in chunked transfer encoding."""
    text, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        text, rest = text + rest[:count], rest[count + 2 :]
        if not count:
            break
    parts = [part.removeprefix(b"data: ") for part in text.split(b"\n\n") if part]
    return [json.loads(part) for part in parts if part != b"[DONE]"]
