"""What a model costs at a task: counted where it can be counted, measured where not."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.cost import UncountedError, count_multiplications, measure
from qkv.runs.load import Config, build
from qkv.tasks.base import Task
from qkv.tasks.masked import MaskedTask
from qkv.tasks.pairs import Seq2SeqTask
from qkv.tasks.seq2seq import Search, answer, collate, encode
from qkv.train import Settings
from qkv.train.objective import Tensors
from qkv.train.optimizer import make_optimizer

DECODED = 256
"""Sources whose decoding is timed."""


@dataclass(frozen=True)
class Expense:
    """What one model costs, trained or not."""

    parameters: int
    state_bytes: int | None
    """Of one sequence at the task's length, all that decoding carries along; None: the model cannot be decoded."""
    multiplications: int | None
    """Of one forward pass over that sequence; None: it ran something that has no formula."""
    peak_bytes: int
    """Most memory held during a training step beyond the weights: forward, backward, update."""


def expense(config: Config, job: Task, row: Tensors, device: str) -> Expense:
    """What a model of this configuration costs, on a row of `example`; an impossible one raises, for it is run."""
    model = build(config, job).eval()
    return Expense(
        parameters=sum(p.numel() for p in model.parameters()),
        state_bytes=_state_bytes(model, job, row),
        multiplications=_count(config, job, row),
        peak_bytes=measure(_training_step(model.to(device), job, config), device, repetitions=1).peak_bytes,
    )


def example(job: Task, settings: Settings) -> Tensors:
    """One row at the task's length: of strings, the held-out pair of median length; of masked text, a held-out pair."""
    if isinstance(job, Seq2SeqTask):
        pairs = sorted(encode(job.strings, job.strings.parts["valid"]), key=lambda pair: len(pair[0]) + len(pair[1]))
        return collate([pairs[len(pairs) // 2]])
    if isinstance(job, MaskedTask):
        return tuple(tensor[:1] for tensor in next(job.examples("valid")))
    return job.objective(nn.Identity(), settings).collate([0])


def decoding_speed(model: nn.Module, job: Seq2SeqTask, split: str) -> float:
    """Tokens a second, END among them, of greedy decoding: sources of like length together."""
    sources = [pair.source for pair in job.strings.parts[split][:DECODED]]
    started = time.perf_counter()
    found = answer(model.eval(), job.strings, sources, Search())
    seconds = time.perf_counter() - started
    return sum(len(best[0].tokens) + best[0].finished for best in found) / seconds


@torch.no_grad()
def _count(config: Config, job: Task, row: Tensors) -> int | None:
    model = build(config, job).double().eval()  # in float64 a recurrent layer runs as products that can be seen
    try:
        with count_multiplications() as counted:
            job.objective(model, config.train).loss(model, row)
    except UncountedError:
        return None
    return counted.total


@torch.inference_mode()
def _state_bytes(model: Any, job: Task, row: Tensors) -> int | None:
    """Bytes of the state after the whole row, as decoding has it: attention, convolutions, what is seen of a source."""
    if not hasattr(model, "start"):
        return None
    if not isinstance(job, Seq2SeqTask):
        return _bytes(model.start(row[0], None))
    state = model.start(row[0], None)
    for token in row[2].unbind(1):
        state = model.step(token, state)[1]
    unused = ("source", "seen") if getattr(model, "attention", True) is None else ()
    return _bytes(state) - sum(_bytes(getattr(state, name)) for name in unused)


def _bytes(held: Any) -> int:
    if isinstance(held, Tensor):
        return held.nbytes
    if isinstance(held, tuple):
        return sum(map(_bytes, held))
    if hasattr(held, "bytes"):
        return int(held.bytes)
    return sum(map(_bytes, vars(held).values())) if hasattr(held, "__dataclass_fields__") else 0


def _training_step(model: nn.Module, job: Task, config: Config) -> Any:
    task = job.objective(model, config.train)
    optimizer = make_optimizer(model, config.train)
    device = next(model.parameters()).device
    for other in task.beside:
        other.to(device)
    batch = tuple(tensor.to(device) for tensor in task.collate(task.order(0)))

    def step() -> None:
        model.train()
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = task.loss(model, batch)
        (loss / task.count(batch)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
