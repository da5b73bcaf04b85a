"""The delta rule on a GPU: errors of the kernels against float64, equal bits, and times.

    python -m benchmarks.delta_gpu --check --time --cold --out FILE    --cold: with the first call, compiled
    python -m benchmarks.delta_gpu --configs --out FILE       times of launch configurations, pass by pass
    python -m benchmarks.delta_gpu --time --fla FOLDER        with flash-linear-attention, unpacked in FOLDER

FILE is written after each result. A part that fails is printed, and the others go on. Nothing starts after `--seconds`.
Kernels are compiled and checked in several processes; what is timed has the GPU for itself.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import traceback
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.delta_gpu_check import CHECKS, CheckCase, check, check_steps, draw
from qkv.attention import Delta, RecurrentState
from qkv.attention.triton import delta_launch, delta_plan
from qkv.attention.triton.delta_plan import DeltaConfig, DeltaConfigs, DeltaOperands
from qkv.attention.triton.kernels.delta_common import SYSTEM_SIZE

SHAPES = {"X": (8, 16, 8192), "Z": (1, 4, 131072)}
"""batch, heads, tokens."""
PASSES = ("pairs", "inverse", "walk", "walk_back", "grad")
CANDIDATES: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {
    ("pairs", 64): ((0, 4, 1, 128), (0, 4, 1), (0, 8, 1)),
    ("pairs", 128): ((0, 4, 1, 128), (0, 4, 1), (0, 8, 1)),
    ("inverse", 64): ((0, 1, 1), (0, 1, 1, 128), (0, 2, 1)),
    ("inverse", 128): ((0, 1, 1), (0, 1, 1, 128), (0, 2, 1)),
    ("walk", 64): ((64, 4, 2), (64, 4, 3), (64, 4, 4)),
    ("walk", 128): ((64, 4, 2), (64, 4, 3), (128, 8, 2)),
    ("walk_back", 64): ((64, 4, 4), (64, 4, 3), (64, 4, 2)),
    ("walk_back", 128): ((64, 4, 2), (128, 8, 2), (128, 8, 3)),
    ("grad", 64): ((64, 4, 1), (32, 4, 1)),
    ("grad", 128): ((64, 4, 1), (128, 4, 1), (64, 4, 2)),
}
"""(pass, dim) -> arguments of `DeltaConfig` that are worth a try: those that spill few registers."""


def define_inputs(name: str, dim: int) -> tuple[list[Any], CheckCase]:
    """Return the inputs of a timed shape."""
    batch, heads, tokens = SHAPES[name]
    case = CheckCase(batch=batch, heads=heads, key_heads=heads, tokens=tokens, key_dim=dim, value_dim=dim)
    return draw(case), case


def milliseconds(call: Callable[[], Any], warmup: int = 20, rep: int = 100) -> float:
    """Return the median time."""
    return float(do_bench(call, warmup=warmup, rep=rep, return_mode="median"))


@contextmanager
def cold_cache() -> Iterator[None]:
    """Compile into an empty folder, as on a machine that has never run the kernels."""
    usual = knobs.cache.dir
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        try:
            yield
        finally:
            knobs.cache.dir = usual


def time_shape(name: str, dim: int, cold: bool) -> dict[str, Any]:
    """Return times of forward, with backward, and of each pass, in ms; and of the first call, in seconds."""
    inputs, case = define_inputs(name, dim)
    q, k, v, decay, beta, _, _ = inputs
    mechanism, leaves = Delta(backend="triton"), [x.requires_grad_() for x in (q, k, v, decay, beta)]
    arriving = torch.randn_like(v)

    def forward() -> Tensor:
        return mechanism(q, k, v, causal=True, decay=decay, beta=beta)

    def both() -> None:
        torch.autograd.grad(forward(), leaves, arriving)

    torch.cuda.synchronize()
    began = time.perf_counter()
    with cold_cache() if cold else nullcontext():
        both()
        torch.cuda.synchronize()
    found: dict[str, Any] = {"first call cold s": time.perf_counter() - began} if cold else {}
    with torch.no_grad():
        found["forward"] = milliseconds(forward)
    torch.cuda.reset_peak_memory_stats()
    found["with backward"] = milliseconds(both)
    found["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    with torch.no_grad():
        found["passes"] = {number: milliseconds(call) for number, call in passes(inputs, case).items()}
    return found


def passes(inputs: list[Any], case: CheckCase) -> dict[str, Callable[[], Any]]:
    """Return a call of each pass; `delta_plan.CONFIGS` may change between calls."""
    q, k, v, decay, beta, _, starts = inputs
    x, scale = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows(), case.key_dim**-0.5
    plan = delta_plan.plan_of_operands(x, case.heads)
    out, _, saved = delta_launch.forward_passes(plan, x, None, scale, True)
    found = delta_launch.backward_passes(plan, x, saved, out, None, scale)
    d_states, none = torch.empty_like(saved.states), out.new_empty(0)
    without = saved._replace(states=none, updates=none)
    final = out.new_empty(plan.rows, plan.segments, case.key_dim, case.value_dim, dtype=torch.float32)
    initial = torch.zeros_like(final) if plan.segments > 1 else None
    system = out.new_empty(plan.rows, plan.chunks, SYSTEM_SIZE, dtype=torch.float32)
    return {
        "pairs": lambda: delta_launch.compute_pairs(plan, x, saved, system, scale),
        "inverse": lambda: delta_launch.invert(plan, saved, system),
        "walk": lambda: delta_launch.walk(plan, x, without, initial, final, out),
        "walk for backward": lambda: delta_launch.walk(plan, x, saved, initial, final, out),
        "walk_back": lambda: delta_launch.walk_back(plan, x, saved, (out, None, d_states), found),
        "grad": lambda: delta_launch.compute_gradients(plan, x, saved, (out, d_states), found, scale),
    }


def time_step(dim: int) -> dict[str, float]:
    """Return the microseconds of one token of 8 x 16 heads: in a CUDA graph, and called from Python."""
    case = CheckCase(batch=8, heads=16, key_heads=16, tokens=1, key_dim=dim, value_dim=dim)
    q, k, v, decay, beta, sums, _ = draw(case)
    mechanism = Delta()

    def step() -> None:
        mechanism.step(q, k, v, RecurrentState(sums), decay=decay, beta=beta)

    with torch.inference_mode():
        captured = float(do_bench_cudagraph(step, rep=50, return_mode="median"))
        began = time.perf_counter()
        for _ in range(200):
            step()
        torch.cuda.synchronize()
    return {"captured us": captured * 1000, "called us": (time.perf_counter() - began) * 5000}


@contextmanager
def configured(number: str, dim: int, config: DeltaConfig) -> Iterator[None]:
    """Launch one pass in another way."""
    key = (False, dim)
    usual: DeltaConfigs = delta_plan.CONFIGS[key]
    delta_plan.CONFIGS[key] = replace(usual, **{number: config})
    try:
        yield
    finally:
        delta_plan.CONFIGS[key] = usual


def compile_configs(number: str, dim: int) -> int:
    """Compile one pass into the cache on disk, on fewer tokens that give the same machine code; return how many."""
    case, done = CheckCase(batch=1, heads=16, key_heads=16, tokens=1024, key_dim=dim, value_dim=dim), 0
    call = passes(draw(case), case)[number]
    for arguments in CANDIDATES[number, dim]:
        try:
            with configured(number, dim, DeltaConfig(*arguments)):
                call()
            torch.cuda.synchronize()
            done += 1
        except Exception as problem:  # noqa: BLE001 `try_configs` will report it
            print(number, dim, arguments, type(problem).__name__, flush=True)
    return done


def try_configs(name: str, dim: int, number: str, deadline: float) -> dict[str, Any]:
    """Return the time of each configuration of one pass, the fastest first."""
    inputs, case = define_inputs(name, dim)
    call, times = passes(inputs, case)[number], {}
    for arguments in CANDIDATES[number, dim]:
        if time.monotonic() > deadline:
            break
        try:
            with configured(number, dim, DeltaConfig(*arguments)):
                times[str(arguments)] = milliseconds(call, 10, 40)
        except Exception as problem:  # noqa: BLE001 too many resources, or a failure of the compiler: the others go on
            times[f"{arguments} {type(problem).__name__}"] = float("inf")
    return dict(sorted(times.items(), key=lambda item: item[1]))


def time_fastest(found: dict[str, Any], name: str, dim: int) -> dict[str, Any]:
    """Return times with the fastest configuration of each pass that `try_configs` found."""
    fastest = {number: next(iter(found.get(f"configs {name} {dim} {number}", {})), "") for number in PASSES}
    configs = {number: DeltaConfig(*literal_eval(x)) for number, x in fastest.items() if x.endswith(")")}
    usual: DeltaConfigs = delta_plan.CONFIGS[False, dim]
    delta_plan.CONFIGS[False, dim] = replace(usual, **configs)
    try:
        return {"configs": fastest} | time_shape(name, dim, cold=False)
    finally:
        delta_plan.CONFIGS[False, dim] = usual


def measure_peer(folder: str, dim: int, seconds: float) -> dict[str, Any]:
    """Return what `delta_gpu_peer` measures in this time."""
    command = [sys.executable, "-m", "benchmarks.delta_gpu_peer", folder, str(dim)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        printed, reason = ended.stdout, ended.stderr[-500:] if ended.returncode else ""
    except subprocess.TimeoutExpired as late:
        printed, reason = (late.stdout or b"").decode(), f"ended after {seconds:.0f} s"
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found | ({"stopped": reason} if reason else {})


def short(value: Any) -> str:
    """Return a result on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {short(x)}" for name, x in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def name_of(case: CheckCase) -> str:
    """Return what differs from the usual case."""
    changed = {name: x for name, x in vars(case).items() if x != getattr(CheckCase, name)}
    return "check " + short(changed).replace("torch.", "")


class Results:
    """The results so far, printed and written to a file as each comes."""

    def __init__(self, path: Path | None):
        self.path, self.problems = path, 0
        self.found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}

    def add(self, name: str, call: Callable[[], Any]) -> None:
        """Run one part, which stands alone."""
        began = time.monotonic()
        try:
            result = call()
            line = short(result)
        except Exception as problem:  # noqa: BLE001 the other parts go on
            self.problems += 1
            result, line = {"error": traceback.format_exc()}, f"{type(problem).__name__}: {str(problem)[:300]}"
        self.found[name] = result
        seconds = time.monotonic() - began
        print(f"{name}: {line}" + (f" [{seconds:.1f} s]" if seconds > 0.1 else ""), flush=True)
        if self.path:
            self.path.write_text(json.dumps(self.found, indent=1))


def send_result(pipe: Any, task: Callable[[], Any]) -> None:
    """Run a task in this process, and send its result or its error."""
    try:
        pipe.send((task(), ""))
    except Exception as problem:  # noqa: BLE001 it is raised where it is received
        pipe.send((None, f"{type(problem).__name__}: {problem}"[:2000]))


def receive_result(pipe: Any) -> Any:
    """Return what `send_result` sent, or raise."""
    try:
        result, problem = pipe.recv()
    except EOFError:
        problem = "the process ended"
    if problem:
        raise RuntimeError(problem)
    return result


def run_together(found: Results, tasks: dict[str, Callable[[], Any]], workers: int, seconds: float) -> None:
    """Run what is not timed in several processes; those that are late are ended and count as failed.

    A process for each task: after an error of the GPU, a process can do nothing more.
    """
    context, deadline = multiprocessing.get_context("spawn"), time.monotonic() + seconds
    waiting = list(tasks.items())
    running: dict[Any, tuple[str, Any]] = {}
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < workers:
            name, task = waiting.pop(0)
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=send_result, args=(sending, task))
            process.start()
            sending.close()  # so that the end of the process ends the pipe
            running[receiving] = name, process
        for pipe in connection.wait(list(running), max(0.0, deadline - time.monotonic())):
            name, process = running.pop(pipe)
            found.add(name, partial(receive_result, pipe))
            process.join()
    for name, process in running.values():
        process.kill()
        waiting.append((name, partial(int)))
    if waiting:
        found.problems += 1
        print("late:", "; ".join(name for name, _ in waiting), flush=True)


def run_in_turn(found: Results, options: argparse.Namespace, deadline: float) -> None:
    """Run what is timed."""
    parts: list[tuple[str, Callable[[], Any]]] = []
    if options.time:
        parts += [
            (f"time {name} {dim}", partial(time_shape, name, dim, options.cold))
            for name, dim in product(SHAPES, (128, 64))
        ]
        parts += [(f"time step {dim}", partial(time_step, dim)) for dim in (128, 64)]
    if options.configs:
        for dim in (128, 64):
            parts += [
                (f"configs X {dim} {one}", partial(try_configs, "X", dim, one, deadline)) for one in options.passes
            ]
            parts.append((f"fastest X {dim}", partial(time_fastest, found.found, "X", dim)))
    if options.fla:
        parts += [(f"fla X {dim}", partial(measure_peer, options.fla, dim, options.fla_seconds)) for dim in (128, 64)]
    for name, call in parts:
        if time.monotonic() > deadline:
            found.add(f"{name}: no time left", lambda: None)
            continue
        found.add(name, call)
        torch.cuda.empty_cache()


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--check", "--time", "--cold", "--configs"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--passes", nargs="*", default=PASSES, choices=PASSES, help="those of --configs (default: all)")
    parser.add_argument("--seconds", type=float, default=600, help="nothing starts after that")
    parser.add_argument("--check-seconds", type=float, default=75, help="limit of checks and compilations")
    parser.add_argument("--workers", type=int, default=14, help="processes that check and compile")
    parser.add_argument("--fla", metavar="FOLDER")
    parser.add_argument("--fla-seconds", type=float, default=60, help="limit of each measurement of it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    deadline, found = time.monotonic() + options.seconds, Results(options.out)
    tasks: dict[str, Callable[[], Any]] = {}
    if options.check:
        tasks |= {name_of(case): partial(check, case) for case in CHECKS}
        tasks["check steps"] = check_steps
    if options.configs:
        tasks |= {
            f"compile {number} {dim}": partial(compile_configs, number, dim)
            for number, dim in CANDIDATES
            if number in options.passes
        }
    run_together(found, tasks, options.workers, options.check_seconds)
    run_in_turn(found, options, deadline)
    sys.exit(1 if found.problems else 0)


if __name__ == "__main__":
    main()
