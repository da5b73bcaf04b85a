"""A corpus in 64 files, one epoch by two processes, counted: `nice python -m benchmarks.corpus_scale --gigabytes 2`.

1. Writes JSON lines: Python's documentation and the sources of the standard library and of installed packages, again
   and again in another order, each with a number of its own at its head.
2. Tokenizes it into shards with two worker processes (`qkv.data.tokenize_corpus`).
3. Two processes walk one epoch, as training does, but without a model: the task's order, `shard`, the task's collate.
   Each marks the rows that it saw in a bitmap; both together must be all rows, each once.
4. A new process starts at a step in the middle and must get the same batches, to the bit.

Memory is the resident set of a process, sampled in each of 20 parts of its work. Writes
benchmarks/results/corpus_scale_cpu.json. Text and shards are in a temporary folder, which is removed.
"""

import argparse
import json
import os
import random
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from itertools import count, pairwise
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

from benchmarks.machine import about
from qkv import tasks
from qkv.data import ShardOptions, TokenShards, shard, tokenize_corpus
from qkv.models import Decoder, DecoderConfig
from qkv.train import Objective, Settings

RESULTS = Path(__file__).parent / "results" / "corpus_scale_cpu.json"
LENGTH, BATCH, RANKS, SHARDS = 256, 64, 2, 64
SIZE, SEED, CHECKED_STEPS = 16_000, 0, 50
MAX_SOURCE_BYTES = 400_000
PARTS = 20


def _sources() -> list[str]:
    """Return the texts that the corpus is made of."""
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    paths = sorted({path for folder in folders for path in folder.rglob("*.py") if path.stat().st_size > 500})
    texts = [topics[name] for name in sorted(topics)]
    for path in paths:
        if path.stat().st_size <= MAX_SOURCE_BYTES:
            text = path.read_bytes().decode("utf-8", "ignore").replace("\0", "")
            texts.append(text)
    return texts


def _write_corpus(folder: Path, size: int) -> None:
    """Write `size` bytes of text in a file for each shard."""
    texts, numbers, draw = _sources(), count(), random.Random(SEED)

    def documents() -> Iterator[bytes]:
        while True:
            draw.shuffle(texts)
            for text in texts:
                yield json.dumps({"text": f"Document {next(numbers)}\n\n{text}"}).encode() + b"\n"

    stream = documents()
    folder.mkdir()
    for number in range(SHARDS):
        left = size // SHARDS
        with (folder / f"{number:03}.jsonl").open("wb") as file:
            while left > 0:
                left -= file.write(next(stream))


def _memory() -> int:
    """Return the resident set of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _open(folder: Path) -> Objective:
    """Return what the training loop of a process reads its batches from."""
    task = tasks.tasks["text"].load({"source": str(folder), "length": LENGTH})
    settings = Settings(steps=1, batch_size=BATCH, seed=SEED)
    model = Decoder(DecoderConfig(dim=16, heads=2, hidden_dim=16, layers=1, max_length=LENGTH), *task.sizes())
    return task.objective(model, settings)


def _digest(tensors: tuple[torch.Tensor, ...]) -> str:
    return sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def _walk(folder: Path, rank: int, checked: int, queue: "Queue[dict[str, Any]]") -> None:
    """Walk one epoch as one of the processes; put its rows, tokens, memory and the digests of some batches."""
    torch.set_num_threads(1)
    objective, rows = _open(folder), (len(TokenShards(folder)) - 1) // LENGTH
    steps = -(-rows // BATCH)
    seen, tokens, twice = bytearray(-(-rows // 8)), 0, 0
    digests: list[str] = []
    memory: list[int] = []
    begin = time.perf_counter()
    for step in range(steps):
        own = shard(objective.order(step)[: rows - step * BATCH], rank, RANKS)  # the last batch ends with the epoch
        for row in own:
            twice += seen[row >> 3] >> (row & 7) & 1
            seen[row >> 3] |= 1 << (row & 7)
        tensors = objective.collate(own)
        tokens += tensors[0].numel()
        if checked <= step < checked + CHECKED_STEPS:
            digests.append(_digest(tensors))
        if step % max(steps // PARTS, 1) == 0:
            memory.append(_memory())
    seconds = time.perf_counter() - begin
    queue.put(
        {"rank": rank, "seen": bytes(seen), "twice": twice, "tokens": tokens, "digests": digests, "memory": memory}
        | {"seconds": seconds, "steps": steps}
    )


def _resume(folder: Path, rank: int, checked: int, queue: "Queue[dict[str, Any]]") -> None:
    """Start at a step, as a resumed training does; put the digests of the batches and the time to the first."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    objective = _open(folder)
    digests = []
    first = 0.0
    for step in range(checked, checked + CHECKED_STEPS):
        digests.append(_digest(objective.collate(shard(objective.order(step), rank, RANKS))))
        first = first or time.perf_counter() - begin
    queue.put({"rank": rank, "digests": digests, "first_batch_seconds": first})


def _in_processes(target: Any, folder: Path, checked: int) -> list[dict[str, Any]]:
    context = get_context("spawn")
    queue: Queue[dict[str, Any]] = context.Queue()
    processes = [context.Process(target=target, args=(folder, rank, checked, queue)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=3600) for _ in processes]
    for process in processes:
        process.join()
    return sorted(found, key=lambda one: one["rank"])


def _descendants_memory(process: int) -> list[int]:
    """Return the resident sets of the worker processes below a process, in bytes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(fields[21]) * os.sysconf("SC_PAGESIZE"))
    return found


def _tokenize(corpus: Path, out: Path, shard_tokens: int) -> dict[str, Any]:
    """Tokenize with two workers; return counts, seconds and the memory of all processes over time."""
    options, stop = ShardOptions(size=SIZE, shard_tokens=shard_tokens), threading.Event()
    samples: list[int] = []

    def watch() -> None:
        while not stop.wait(1):
            samples.append(_memory() + sum(_descendants_memory(os.getpid())))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    manifest = tokenize_corpus(str(corpus), out, options, workers=2)
    seconds = time.perf_counter() - begin
    stop.set()
    watcher.join()
    return {
        "workers": 2,
        "seconds": round(seconds, 1),
        "shards": len(manifest.train),
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "memory_mb_of_all_processes_by_part": _by_part(samples),
    }


def _by_part(samples: list[int]) -> list[int]:
    """Return the largest sample of each of `PARTS` parts, in MB."""
    size = max(len(samples) / PARTS, 1)
    cuts = [int(part * size) for part in range(PARTS + 1)]
    return [max(samples[a:b]) // 10**6 for a, b in pairwise(cuts) if samples[a:b]]


def _measure(folder: Path, gigabytes: float) -> dict[str, Any]:
    begin = time.perf_counter()
    writer = get_context("spawn").Process(target=_write_corpus, args=(folder / "corpus", int(gigabytes * 10**9)))
    writer.start()  # a process of its own, so that the texts do not count as memory of tokenizing
    writer.join()
    sizes = [path.stat().st_size for path in (folder / "corpus").iterdir()]
    size = sum(sizes)
    print(f"{size:,} bytes written in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    # a piece has twice as many bytes as a full shard has tokens: each file becomes a piece, and a piece a shard
    tokenized = _tokenize(folder / "corpus", folder / "shards", max(sizes) // 2 + 1)
    print(json.dumps(tokenized), file=sys.stderr)
    shards = TokenShards(folder / "shards")
    rows = (len(shards) - 1) // LENGTH
    checked = random.Random(SEED).randrange(max(rows // BATCH - CHECKED_STEPS, 1))
    walked = _in_processes(_walk, folder / "shards", checked)
    resumed = _in_processes(_resume, folder / "shards", checked)
    bitmaps = [int.from_bytes(one["seen"], "little") for one in walked]
    seconds = max(one["seconds"] for one in walked)
    tokens = [one["tokens"] for one in walked]
    return {
        "corpus_bytes": size,
        "tokenize": tokenized,
        "epoch": {
            "ranks": RANKS,
            "length": LENGTH,
            "batch_size": BATCH,
            "steps": walked[0]["steps"],
            "rows": rows,
            "rows_seen": (bitmaps[0] | bitmaps[1]).bit_count(),
            "rows_seen_by_both": (bitmaps[0] & bitmaps[1]).bit_count(),
            "rows_seen_twice_by_one": sum(one["twice"] for one in walked),
            "tokens_by_rank": tokens,
            "tokens_left_over": len(shards) - 1 - sum(tokens),
            "seconds": round(seconds, 1),
            "tokens_per_second": round(sum(tokens) / seconds),
            "memory_mb_by_part": [[sample // 10**6 for sample in one["memory"]] for one in walked],
        },
        "resume": {
            "step": checked,
            "batches_compared": RANKS * CHECKED_STEPS,
            "batches_equal": sum(
                a == b
                for one, other in zip(walked, resumed, strict=True)
                for a, b in zip(one["digests"], other["digests"], strict=True)
            ),
            "seconds_to_the_first_batch": round(max(one["first_batch_seconds"] for one in resumed), 2),
        },
    }


def main() -> None:
    """Make, tokenize, walk, compare, write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = _measure(Path(temporary), given.gigabytes)
    command = f"python -m benchmarks.corpus_scale --gigabytes {given.gigabytes:g}"
    given.out.write_text(json.dumps({**about(), "command": command, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
