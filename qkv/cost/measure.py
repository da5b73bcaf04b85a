"""Measure the time and peak memory of a call."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one call."""

    milliseconds: float
    """Median over the repetitions, without the warm-up call."""
    peak_bytes: int
    """Peak memory beyond that held before the call, results included."""


def measure(call: Callable[[], object], device: str | torch.device = "cpu", repetitions: int = 5) -> Measurement:
    """Run `call` once for memory and warm-up, then time it `repetitions` times, or once if it takes over 2 seconds."""
    device = torch.device(device)
    peak = _peak_on_cuda(call, device) if device.type == "cuda" else _peak_on_cpu(call)
    times = [_milliseconds(call, device)]
    if times[0] < 2000:
        times += [_milliseconds(call, device) for _ in range(repetitions - 1)]
    return Measurement(statistics.median(times), peak)


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - started)


def _peak_on_cuda(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(call: Callable[[], object]) -> int:
    """Return the peak of the memory that the profiler saw allocated and freed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    del result
    return peak
