"""Trainings on meshes of processes compared with one process: losses, weights, memory, checkpoints, kills.

    python -m benchmarks.mesh_training --out benchmarks/results/mesh_training_cpu.json

A small decoder, none of whose sizes the processes share evenly, trained by the loop of `qkv train` in 2 and 4 processes
connected by gloo. Every step has gradient accumulation, clipping and an EMA; in every third step there is one example,
so most processes have none. Differences are the largest absolute ones.

For the kills, one process of two is ended with -9 at a random moment, from the start of the processes to the end of the
training; torchrun starts all of them again. The losses must be those of a training that was left alone.
"""

import argparse
import json
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional

from benchmarks.machine import about
from qkv.layers import whole_sequences
from qkv.models import family
from qkv.train import Compute, Interrupted, Loop, Objective, Run, Settings
from qkv.train.objective import Tensors, part_of
from qkv.train.parallel.mesh import parse_mesh

RESULTS = Path(__file__).parent / "results" / "mesh_training_cpu.json"
SIZES = {"dim": 12, "heads": 3, "hidden_dim": 14, "layers": 2, "max_length": 16}
VOCABULARY, LENGTH, EXAMPLES = 17, 11, 5
MESHES = {2: ("data=2", "shard=2", "sequence=2"), 4: ("shard=4", "data=2,shard=2", "shard=2,sequence=2")}
KILLED = "shard=2"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3")
SETTINGS = {"validate_every": 5, "warmup": 3, "learning_rate": 3e-3, "ema_decay": 0.9, "max_grad_norm": 0.3}


@dataclass(frozen=True)
class Job:
    """One training of the small decoder."""

    folder: str
    mesh: str
    settings: dict[str, Any]
    """Training settings that differ from `SETTINGS`."""
    double: bool = True
    """Whether to compute in float64."""
    attention: str = "delta+forget+write,softmax"
    stop_at: int = 0
    """Step at whose end rank 0 receives a signal to stop; 0: none."""


def main() -> None:
    """Train, compare, kill, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--job", help="train as one process of torchrun: a job as JSON")
    given = parser.parse_args()
    if given.job:
        torch.set_num_threads(1)
        run_job(Job(**json.loads(given.job)))
        return
    command = shlex.join(["python", "-m", "benchmarks.mesh_training", *sys.argv[1:]])
    result: dict[str, Any] = {**about(), "command": command, "sizes": SIZES, "steps": given.steps}
    with tempfile.TemporaryDirectory() as folder:
        result["meshes"] = compare_meshes(Path(folder), given.steps)
        result["resumed"] = compare_resumed(Path(folder), given.steps)
        result["kills"] = compare_kills(Path(folder), given.steps, given.kills)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def compare_meshes(root: Path, steps: int) -> list[dict[str, Any]]:
    """Return how far each mesh is from one process, in both precisions, and the largest share that a process holds."""
    rows: dict[str, dict[str, Any]] = {mesh: {"mesh": mesh} for meshes in MESHES.values() for mesh in meshes}
    for precision, double in (("float64", True), ("float32", False)):
        one = Job(str(root / precision), "data=1", {"steps": steps}, double)
        (whole,) = run_jobs(1, [one])[0]
        for processes, meshes in MESHES.items():
            jobs = [replace(one, folder=f"{one.folder} {mesh}", mesh=mesh) for mesh in meshes]
            for mesh, held in zip(meshes, run_jobs(processes, jobs), strict=True):
                rows[mesh][precision] = difference(Path(one.folder), Path(f"{one.folder} {mesh}"))
                shares = {kind: max(process[kind] for process in held) / whole[kind] for kind in whole}
                rows[mesh]["largest share"] = shares
    return list(rows.values())


def compare_resumed(root: Path, steps: int) -> list[dict[str, Any]]:
    """Return how far trainings are from one process that were stopped with 4 processes and go on with 2, or with 1."""
    one = root / "float64"
    stop = steps // 2 + 1
    stopped = Job(str(root / "stopped"), "shard=4", {"steps": steps}, stop_at=stop)
    run_jobs(4, [stopped])
    rows = []
    for processes, mesh in ((2, "shard=2"), (1, "data=1")):
        job = replace(stopped, folder=str(root / f"resumed {processes}"), mesh=mesh, stop_at=0)
        shutil.copytree(stopped.folder, job.folder)
        run_jobs(processes, [job])
        found = difference(one, Path(job.folder))
        rows.append({"stopped": "shard=4", "at step": stop, "resumed": mesh, "difference": found})
    return rows


def compare_kills(root: Path, steps: int, count: int) -> dict[str, Any]:
    """Return how many trainings finished of which a process was killed, and the largest difference of their losses."""
    started = time.monotonic()
    whole = Job(str(root / "whole"), KILLED, {"steps": steps})
    with _torchrun(whole) as process:
        if process.wait():
            raise RuntimeError("the training that was left alone failed")
    seconds = time.monotonic() - started
    chosen, finished, reached, differences = random.Random(1), 0, 0, []
    for number in range(count):
        job = replace(whole, folder=str(root / f"killed {number}"))
        with _torchrun(job) as process:
            time.sleep(chosen.uniform(0.1, 0.9) * seconds)
            reached += _kill(process, chosen.randrange(2))
            with suppress(subprocess.TimeoutExpired):
                finished += process.wait(10 * seconds + 60) == 0
        pairs = zip(losses(Path(whole.folder)), losses(Path(job.folder)), strict=False)
        differences.append(max((abs(a - b) for (_, a), (_, b) in pairs), default=0.0))
    return {
        "mesh": KILLED,
        "trainings": count,
        "killed": reached,
        "finished": finished,
        "largest difference of losses": max(differences, default=0.0),
    }


@contextmanager
def _torchrun(job: Job) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield torchrun with two processes at the job; it does not outlive the block."""
    worker = ("-m", "benchmarks.mesh_training", "--job", json.dumps(asdict(job)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [*TORCHRUN, *worker]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _kill(process: "subprocess.Popen[bytes]", rank: int) -> bool:
    """Kill the process of this rank; return whether there was one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        with suppress(OSError):
            if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return True
    return False


def largest(found: dict[str, float]) -> float:
    """Return the largest difference of losses, scores and tensors; that of gradient norms stands beside it."""
    return max(value for name, value in found.items() if name != "norm")


def table(result: dict[str, Any]) -> str:
    """Return the differences of each mesh and of resumed trainings, for docs/scale.md."""
    lines = [
        "| training | float64 | its gradient norm | float32 | its gradient norm | parameters + optimizer held |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["meshes"]:
        found = [x for precision in ("float64", "float32") for x in (largest(row[precision]), row[precision]["norm"])]
        share = max(row["largest share"].values())
        lines.append(f"| `{row['mesh']}` | {' | '.join(f'{x:.1e}' for x in found)} | {share:.1%} |")
    for row in result["resumed"]:
        name = f"`{row['stopped']}` to step {row['at step']}, then `{row['resumed']}`"
        lines.append(f"| {name} | {largest(row['difference']):.1e} | {row['difference']['norm']:.1e} | | | |")
    return "\n".join(lines)


def run_job(job: Job) -> dict[str, Any]:
    """Train or resume in this process, one of those of the mesh; return the bytes that it holds."""
    settings = Settings(**{**SETTINGS, "accumulation_steps": 2, **job.settings})
    folder = Path(job.folder)
    folder.mkdir(exist_ok=True)
    objective = make_objective(job)
    loop = Loop(objective, settings, Run(folder), Compute(mesh=parse_mesh(job.mesh)))
    loop.report = partial(_stop_at, loop, job.stop_at)
    loop.resume()
    with suppress(Interrupted):
        loop.train()
    moments = [x for state in loop.optimizer.state.values() for x in state.values() if x.dim()]
    return {"parameters": _bytes(loop.model.parameters()), "optimizer": _bytes(moments)}


def _stop_at(loop: Loop, step: int, line: dict[str, Any]) -> None:
    if "loss" in line and line["step"] == step:
        loop.interrupt.received = signal.SIGTERM


def make_objective(job: Job) -> Objective:
    """Return the task: predict random rows of tokens, which a model can only learn by heart."""
    chosen = family("decoder")
    torch.manual_seed(0)
    model = chosen.build(chosen.configure({**SIZES, "attention": job.attention}), VOCABULARY)
    rows = torch.randint(0, VOCABULARY, (40, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def collate(ids: list[int]) -> Tensors:
        return rows[ids, :-1].contiguous(), rows[ids, 1:].contiguous()

    def validate(model: nn.Module, may_stop: Any) -> float:
        may_stop()
        with whole_sequences(model):
            return float(_loss(model, collate(list(range(30, 40))))) / (10 * LENGTH)

    return Objective(
        model=model.double() if job.double else model,
        order=lambda step: [(7 * step + number) % 30 for number in range(1 if step % 3 == 2 else EXAMPLES)],
        collate=collate,
        count=lambda tensors: tensors[1].numel(),
        loss=_loss,
        validate=validate,
        split_sequence=_split,
    )


def _loss(model: nn.Module, tensors: Tensors) -> Tensor:
    return functional.cross_entropy(model(tensors[0]).flatten(0, 1), tensors[1].flatten(), reduction="sum")


def _split(tensors: Tensors, part: int, parts: int) -> Tensors:
    places = part_of(LENGTH, part, parts)
    return tuple(x[:, places].contiguous() for x in tensors)


def _bytes(tensors: Any) -> int:
    return sum((x.to_local() if isinstance(x, DTensor) else x).nbytes for x in tensors)


def run_jobs(processes: int, jobs: Sequence[Job]) -> list[list[dict[str, Any]]]:
    """Run the jobs, one after the other, in as many new processes; return what `run_job` returns by job and rank."""
    # imported once, not by each process
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_process, (processes, list(jobs), folder), nprocs=processes, start_method="forkserver")
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]
    return [list(each) for each in zip(*found, strict=True)]


def _process(rank: int, processes: int, jobs: list[Job], folder: str) -> None:
    torch.set_num_threads(1)
    with _connected(rank, processes, folder):
        found = [run_job(job) for job in jobs]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


@contextmanager
def _connected(rank: int, processes: int, folder: str) -> Iterator[None]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes))
    if processes == 1:
        yield
        return
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


def losses(folder: Path) -> list[tuple[int, float]]:
    """Return (step, loss) of each update."""
    return [(line["step"], line["loss"]) for line in Run(folder).read_metrics() if "loss" in line]


def difference(one: Path, other: Path) -> dict[str, float]:
    """Return the largest difference of losses, gradient norms, scores, state dicts and final weights of two runs."""
    return {**_of_metrics(one, other), **_of_tensors(one, other)}


def _of_metrics(one: Path, other: Path) -> dict[str, float]:
    found = {}
    for name in ("loss", "norm", "score"):
        left, right = ([x for x in Run(folder).read_metrics() if name in x] for folder in (one, other))
        if [x["step"] for x in left] != [x["step"] for x in right]:
            raise ValueError(f"{one} and {other} have {name} at different steps")
        found[name] = max(abs(a[name] - b[name]) for a, b in zip(left, right, strict=True))
    return found


def _of_tensors(one: Path, other: Path) -> dict[str, float]:
    left, right = _read_tensors(one), _read_tensors(other)
    if {kind: sorted(x) for kind, x in left.items()} != {kind: sorted(x) for kind, x in right.items()}:
        raise ValueError(f"{one} and {other} have different tensors")
    return {
        kind: max(float((x - right[kind][name]).abs().max()) for name, x in weights.items())
        for kind, weights in left.items()
    }


def _read_tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return the state dicts of the last checkpoint, and the final weights."""
    found = Run(folder).load_checkpoint()
    if found is None:
        raise ValueError(f"{folder} has no checkpoint")
    return {**found.tensors, "final": load_file(folder / "model.safetensors")}


if __name__ == "__main__":
    main()
