"""MNIST with our loop versus plain PyTorch loops over the same net: `python -m benchmarks.digits_cpu`.

The net is the convolutional one with pooling, in batches of 256, float32, AdamW, on the 5,000-digit part. The plain
loops are as lean as people write them, without log and guard: one picks rows of tensors that are ready, one lets torch
fuse its AdamW as our loop does, one clips its gradients too, one takes its rows from torch's DataLoader. They take
turns of a few updates, each round in another order, so that a busy moment affects all alike; none validates.
The figure is the median over the rounds of (time of the plain loop / time of ours), by the clock on the wall and by the
processor's. On a machine that others load, `OMP_NUM_THREADS=1` keeps threads from waiting for each other. Writes
benchmarks/results/digits_cpu.json.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.machine import about
from qkv import runs, tasks
from qkv.train import Loop, Run

RESULTS = Path(__file__).parent / "results" / "digits_cpu.json"
BATCH, TURN, ROUNDS = 256, 10, 30
"""Examples an update, updates a turn, rounds that count; one more comes first, to warm up."""


class Peer(nn.Module):
    """The same net, written down in torch's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.wide, self.narrow, self.last = nn.Linear(400, 320), nn.Linear(320, 120), nn.Linear(120, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.max_pool2d(self.first(x), 2).relu()
        x = functional.max_pool2d(self.second(x), 2).relu().flatten(1)
        return self.last(self.narrow(self.wide(x).relu()).relu())


def plain(
    batches: Iterator[tuple[Tensor, Tensor]], *, fused: bool | None = None, clip: float | None = None
) -> Callable[[], None]:
    """One update of a plain loop; fused None is what torch chooses by itself, which is not to."""
    model = Peer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)

    def update() -> None:
        pictures, labels = next(batches)
        functional.cross_entropy(model(pictures), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def now() -> tuple[float, float]:
    """Seconds on the wall, and of the processor by all threads: on a shared machine the wall measures others too."""
    return time.perf_counter(), time.process_time()


def since(before: tuple[float, float]) -> tuple[float, float]:
    """Seconds of both kinds."""
    wall, processor = now()
    return wall - before[0], processor - before[1]


def in_turns(
    job: tasks.ClassificationTask, peers: dict[str, Callable[[], None]]
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each turn: our loop trains, and after the last update of its turn the peers take theirs."""
    changes = {"train": {"steps": TURN * (1 + ROUNDS), "batch_size": BATCH, "validate_every": 10**6}}
    config = runs.configure("digits", runs.preset("digits", "quick"), changes)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ("qkv", *peers)}
    clock = now()

    def report(line: dict[str, Any]) -> None:
        nonlocal clock
        if "loss" not in line or line["step"] % TURN:
            return
        seconds["qkv"].append(since(clock))
        first = len(seconds["qkv"]) % len(peers)
        for name in [*peers][first:] + [*peers][:first]:
            started = now()
            for _ in range(TURN):
                peers[name]()
            seconds[name].append(since(started))
        clock = now()

    with tempfile.TemporaryDirectory() as folder:
        task = job.objective(runs.build(config, job), config.train)
        Loop(task, config.train, Run(Path(folder)), report=report).train()
    return {name: values[1:] for name, values in seconds.items()}


def figures(seconds: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """How many times as fast our loop is as each plain one, by both clocks: median over the rounds, and of all time."""
    found = {}
    for index, clock in enumerate(("wall", "processor")):
        times = {name: [both[index] for both in values] for name, values in seconds.items()}
        ours = times["qkv"]
        found[clock] = {
            "digits_per_second": {name: BATCH * TURN / statistics.median(values) for name, values in times.items()},
            "qkv_over_plain_median_of_rounds": {
                name: statistics.median(theirs / mine for theirs, mine in zip(values, ours, strict=True))
                for name, values in times.items()
            },
            "qkv_over_plain_in_total_time": {name: sum(values) / sum(ours) for name, values in times.items()},
        }
    return found


def main() -> None:
    """Measure and write."""
    load = os.getloadavg()[0]
    job = tasks.DigitsTask.load({"part": "small"})
    train = job.splits["train"]
    pictures, labels = job.scale.apply(train.inputs), train.labels

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for ids in torch.randperm(len(labels)).split(BATCH)[:-1]:
                yield pictures[ids], labels[ids]

    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from DataLoader(TensorDataset(pictures, labels), BATCH, shuffle=True, drop_last=True)

    peers = {
        "plain loop": plain(rows()),
        "plain loop, fused AdamW": plain(rows(), fused=True),
        "plain loop, fused AdamW, that clips": plain(rows(), fused=True, clip=1.0),
        "plain loop with DataLoader": plain(loader()),
    }
    found = figures(in_turns(job, peers))
    about_it = {"batch": BATCH, "updates_a_turn": TURN, "rounds": ROUNDS, "load_at_start": load}
    result = {**about(), "command": "python -m benchmarks.digits_cpu", **about_it, **found}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def table(result: dict[str, Any]) -> str:
    """The result file as Markdown: by the clock on the wall."""
    rates, faster = (result["wall"][name] for name in ("digits_per_second", "qkv_over_plain_median_of_rounds"))
    lines = ["| | digits per second | speed of qkv, relative |", "|---|---|---|"]
    for name, rate in rates.items():
        lines.append(f"| {name} | {rate:,.0f} | {faster[name]:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
