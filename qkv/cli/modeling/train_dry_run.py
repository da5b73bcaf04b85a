"""`qkv train --dry-run`: settings, parameters, data sizes and estimated time, without writing anything."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from qkv.cli.modeling.train_setup import Request, prepare
from qkv.cli.shared.console import console, print_json
from qkv.cli.tables.settings import print_settings

if TYPE_CHECKING:
    from torch import nn

    from qkv.train import Compute, Objective

TIMED_STEPS = 8
MAX_SECONDS = 10.0
"""Seconds after which no further step is timed."""


def print_dry_run(request: Request, compute: "Compute", as_json: bool) -> None:
    """Print what this training would do."""
    from qkv import runs

    if request.resume:
        raise ValueError("--dry-run describes a new training; leave out --resume")
    config, task, model = prepare(request)
    model = model.to(compute.device)
    seconds = _seconds_per_step(runs.make_objective(config, task, model), model, compute.device)
    steps, minutes = config.train.steps, config.train.minutes
    if steps is None and minutes is not None:
        steps = max(1, int(60 * minutes / seconds))
    minutes = (steps or 0) * seconds / 60
    sizes, settings = task.split_sizes(), runs.list_settings(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if as_json:
        estimate = {"parameters": parameters, "examples": sizes, "steps": steps, "estimated_minutes": minutes}
        if request.mesh is not None:
            estimate |= {"mesh": str(request.mesh), "processes": request.mesh.processes}
        print_json({"task": config.task, **estimate, "settings": [asdict(setting) for setting in settings]})
        return
    print_settings(settings)
    examples = ", ".join(f"{name} {count:,}" for name, count in sizes.items()) or "known when training starts"
    lines = [f"parameters: {parameters:,}", f"examples:   {examples}"]
    lines.append(f"steps:      {steps:,}{_format_epochs(steps or 0, config.train.batch_size, sizes.get('train', 0))}")
    lines.append(f"time:       about {_format_minutes(minutes)} on {compute.device}, without validation")
    if request.mesh is not None:
        processes = request.mesh.processes
        lines.append(f"mesh:       {request.mesh}: {processes} processes of torchrun; the time is that of one process")
    console().print("\n".join(lines), markup=False, soft_wrap=True)


def _seconds_per_step(objective: "Objective", model: "nn.Module", device: str) -> float:
    """Return the median time of a few steps of forward and backward; the first one warms up."""
    from statistics import median

    import torch

    found: list[float] = []
    started = time.perf_counter()
    model.train()
    for step in range(TIMED_STEPS + 1):
        before = time.perf_counter()
        tensors = tuple(tensor.to(device) for tensor in objective.collate(objective.order(step)))
        if objective.update is None:
            (objective.loss(model, tensors) / max(objective.count(tensors), 1)).backward()
            model.zero_grad()
        else:
            objective.update(model, tensors, 0.0)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - before)
        if found[1:] and time.perf_counter() - started > MAX_SECONDS:
            break
    return median(found[1:])


def _format_epochs(steps: int, batch_size: int, examples: int) -> str:
    return f", {steps * min(batch_size, examples) / examples:,.1f} epochs" if examples else ""


def _format_minutes(minutes: float) -> str:
    if minutes < 1:
        return f"{max(60 * minutes, 1):.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
