"""MNIST through our loop beside plain PyTorch loops over the same net: `python -m benchmarks.digits_cpu`.

The net is the convolutional one with pooling, in batches of 256, float32, AdamW, on the 5,000-digit part. The plain
loops are as lean as people write them, without log and guard: one picks rows of tensors that are ready, one clips its
gradients as our loop does, one takes its rows from torch's DataLoader. All take one update in turn, so that a busy
moment hits all alike. Writes benchmarks/results/digits_cpu.json.
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
from qkv import tasks
from qkv.train import Loop, Run

RESULTS = Path(__file__).parent / "results" / "digits_cpu.json"
BATCH, WARM, STEPS = 256, 30, 400


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


def plain(batches: Iterator[tuple[Tensor, Tensor]], clip: float | None = None) -> Callable[[], None]:
    """One update of a plain loop."""
    model = Peer()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)

    def update() -> None:
        pictures, labels = next(batches)
        functional.cross_entropy(model(pictures), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return update


def in_turns(job: tasks.ClassJob, peers: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Processor seconds of each update: our loop trains, and the peers take theirs whenever it has reported one.

    The processor's time, of all threads: on a machine that others use, the clock on the wall measures the others.
    """
    changes = {"train": {"steps": WARM + STEPS, "batch_size": BATCH, "every": 10**6}}
    config = tasks.configure("digits", tasks.preset("digits", "quick"), changes)
    seconds: dict[str, list[float]] = {name: [] for name in ("qkv", *peers)}
    clock = time.process_time()

    def report(line: dict[str, Any]) -> None:
        nonlocal clock
        if "loss" not in line:
            return
        seconds["qkv"].append(time.process_time() - clock)
        for name, update in peers.items():
            started = time.process_time()
            update()
            seconds[name].append(time.process_time() - started)
        clock = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        task = job.task(tasks.build(config, job), config.train)
        Loop(task, config.train, Run(Path(folder)), report=report).train()
    return {name: values[WARM:] for name, values in seconds.items()}


def main() -> None:
    """Medians over the updates."""
    load = os.getloadavg()[0]
    job = tasks.Digits.load({"part": "small"})
    train = job.parts["train"]
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
        "plain loop that clips": plain(rows(), clip=1.0),
        "plain loop with DataLoader": plain(loader()),
    }
    seconds = in_turns(job, peers)
    rates = {name: BATCH / statistics.median(values) for name, values in seconds.items()}
    found = {
        "digits_per_processor_second": rates,
        "qkv_is_faster_by": {name: rates["qkv"] / rate for name, rate in rates.items()},
        "qkv_is_faster_by_in_total_time": {name: sum(v) / sum(seconds["qkv"]) for name, v in seconds.items()},
    }
    result = {**about(), "command": "python -m benchmarks.digits_cpu", "batch": BATCH, "updates": STEPS}
    RESULTS.write_text(json.dumps({**result, "load_at_start": load, **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
