"""Plans of training steps compared with what real processes hold, send and save.

    python -m benchmarks.plan              measure, about a minute; writes benchmarks/results/plan_cpu.json
    python -m benchmarks.plan --examples   plans of a large model only, without measuring

Meshes of 2 and 4 processes on this machine (gloo): torch's own DDP and `fully_shard` on a decoder. Bytes sent are those
of every collective call that torch dispatches, times (n - 1) / n for each pass of a ring. Activations: tensors that one
process saves for backward on the CPU.
"""

import argparse
import json
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.machine import about
from qkv.cost import Input, measure
from qkv.models import family
from qkv.profile.plan.activations import count_activations
from qkv.profile.plan.gpus import find_gpu
from qkv.profile.plan.memory import LOGIT_BYTES
from qkv.profile.plan.plan import TrainingPlan, make_plan
from qkv.profile.plan.request import make_step
from qkv.profile.plan.to_json import plan_to_record
from qkv.profile.spec import ProfileTarget, resolve_spec
from qkv.train.backward import recompute_blocks
from qkv.train.parallel.mesh import Mesh, parse_mesh

RESULTS = Path(__file__).parent / "results" / "plan_cpu.json"
VOCABULARY = 307
SIZES = {"dim": 66, "heads": 11, "hidden_dim": 134, "layers": 3, "max_length": 2048}
"""A small decoder, none of whose sizes 4 processes share evenly."""
MESHES = (("data=2", "shard=2"), ("shard=4", "data=2,shard=2"))
"""Meshes that the same processes train on, one after the other."""
TOKENS = 32
PASSING = ("gradients", "gathered parameters", "whole gradients", "logits")
"""Terms of a plan that a forward and a backward pass allocate, beside activations."""
KINDS = ("softmax", "linear", "taylor", "delta+forget+write", "2*linear+forget,softmax")
SAVED = ((3, 127), (1, 1024))
"""Batch and tokens of the runs whose saved tensors are measured."""
EXAMPLE_MODEL = {"dim": 4096, "heads": 32, "hidden_dim": 16384, "layers": 32, "max_length": 2**20, "dropout": 0.0}
"""Sizes of a decoder of 6.6 billion parameters."""
EXAMPLE_KINDS = ("softmax", "3*delta+forget+write,softmax", "linear+forget")
EXAMPLE_MESH = "shard=2,sequence=32"
EXAMPLE_TOKENS = 2**20


def build(device: str, **changes: Any) -> nn.Module:
    """Return the small decoder."""
    chosen = family("decoder")
    with torch.device(device):
        return chosen.build(chosen.configure({**SIZES, **changes}), VOCABULARY)


def plan_small(mesh: Mesh) -> TrainingPlan:
    """Return the plan for the small decoder, in float32, one example per process."""
    target = ProfileTarget("small decoder", build("meta"), (Input.parse("int[1,n]"),))
    step = make_step(target, mesh, sizes={"n": TOKENS}, precision="float32")
    return make_plan(step, find_gpu("h200"))


class Sent(TorchDispatchMode):
    """Bytes that this process sends in collective calls, by kind, if each is a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func.__name__.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if name == "_allgather_base_":
            self.bytes["all-gather"] += args[0].nbytes - args[1].nbytes
        elif name == "_reduce_scatter_base_":
            self.bytes["reduce-scatter"] += args[1].nbytes - args[0].nbytes
        elif name == "broadcast_":
            self.bytes["broadcast"] += sum(x.nbytes for x in args[0])
        elif name == "allreduce_":
            size = dist.ProcessGroup.unbox(args[1]).size()
            self.bytes["all-reduce"] += 2 * (size - 1) * sum(x.nbytes for x in args[0]) // size
        else:
            raise NotImplementedError(f"unexpected communication: {name}")


def run_process(rank: int, meshes: list[Mesh], folder: str) -> None:
    """Train as one process of each mesh and write what it holds and sends."""
    torch.set_num_threads(1)
    size = meshes[0].processes
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = [_train(mesh, rank) for mesh in meshes]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _train(mesh: Mesh, rank: int) -> dict[str, Any]:
    """Train three steps; return what the third one holds and sends, and the peak of one more."""
    model = _distribute(build("cpu"), mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(rank))

    def backward() -> None:
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    steps = [Sent() for _ in range(3)]  # before the third one DDP has arranged its buckets
    for sent in steps:
        optimizer.zero_grad()
        with sent:
            backward()
        optimizer.step()
    held = _held(model, optimizer)
    optimizer.zero_grad()
    return {"held": held, "sent": steps[-1].bytes, "peak": measure(backward, repetitions=1).peak_bytes}


def _distribute(model: nn.Module, mesh: Mesh) -> nn.Module:
    if mesh.shard == 1:
        return DistributedDataParallel(model)
    sizes = {"data": mesh.data, "shard": mesh.shard} if mesh.data > 1 else {"shard": mesh.shard}
    devices = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=devices)
    fully_shard(model, mesh=devices)
    return model


def _held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes of parameters, gradients and optimizer state, padding of shards included."""
    parameters = list(model.parameters())
    moments = [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    return {
        "parameters": sum(_local(p).untyped_storage().nbytes() for p in parameters),
        "gradients": sum(_local(p.grad).nbytes for p in parameters if p.grad is not None),
        "optimizer": sum(_local(x).nbytes for x in moments),
    }


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x.detach()


def measure_meshes(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what was planned for meshes of the same size, and what their processes held and sent: the largest."""
    meshes = [parse_mesh(text) for text in texts]
    size = meshes[0].processes
    multiprocessing.set_forkserver_preload([run_process.__module__, "torch._dynamo"])  # imported once, not by each
    with tempfile.TemporaryDirectory() as folder:
        start_processes(run_process, (meshes, folder), nprocs=size, start_method="forkserver")
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]
    return [_compare(mesh, list(each)) for mesh, each in zip(meshes, zip(*found, strict=True), strict=True)]


def _compare(mesh: Mesh, found: list[dict[str, Any]]) -> dict[str, Any]:
    plan = plan_small(mesh)
    terms = {name: term.value for name, term in plan.memory.terms.items()}
    sent = Counter(dict.fromkeys(("all-gather", "reduce-scatter", "all-reduce", "broadcast"), 0))
    for transfer in plan.traffic:
        sent[next(name for name in sent if name in transfer.name)] += transfer.sent
    rows = {f"{name} held": (terms[name], max(one["held"][name] for one in found)) for name in found[0]["held"]}
    for name, planned in sent.items():
        measured = max(one["sent"].get(name, 0) for one in found)
        if planned or measured:
            rows[f"{name} sent"] = planned, measured
    passing = sum(terms.get(name, 0) for name in PASSING) + plan.memory.plain.value
    rows["peak of a step beyond the model"] = passing, max(one["peak"] for one in found)
    return {"mesh": str(mesh), "rows": _rows(rows)}


def _rows(pairs: dict[str, tuple[int, int]]) -> dict[str, dict[str, float]]:
    return {
        name: {"predicted": planned, "measured": measured, "ratio": planned / measured}
        for name, (planned, measured) in pairs.items()
    }


def measure_saved(kind: str, batch: int, tokens: int) -> dict[str, Any]:
    """Return the bytes that a real forward pass on this CPU saves for backward, without and with recomputation."""
    inputs = torch.zeros(batch, tokens, dtype=torch.int64)
    planned = count_activations(
        make_step(
            ProfileTarget(kind, build("meta", attention=kind), (Input.parse("int[1,n]"),)),
            Mesh(),
            sizes={"n": tokens},
            batch=batch,
            precision="float32",
        ).call,
        {"n": tokens},
        "float32",
    )
    plain, again = build("cpu", attention=kind), build("cpu", attention=kind)
    recompute_blocks(again)
    rows = {
        "saved": (planned.saved, _saved_bytes(plain, inputs)),
        "saved with recompute": (planned.rest + planned.block_inputs, _saved_bytes(again, inputs)),
    }
    return {"kind": kind, "batch": batch, "tokens": tokens, "rows": _rows(rows)}


def _saved_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Return the bytes of the storages that the model saves, without its parameters."""
    held: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        held.setdefault(x.untyped_storage().data_ptr(), x)
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        out = model.train()(inputs)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    total = sum(x.untyped_storage().nbytes() for key, x in held.items() if key not in own)
    del out
    return total


def measure_logits() -> dict[str, Any]:
    """Return the peak memory of a loss over many classes, forward and backward."""
    tokens, classes = 512, 20_000
    logits = torch.zeros(tokens, classes, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.int64)

    def step() -> None:
        functional.cross_entropy(logits * 1.0, targets).backward()
        logits.grad = None

    rows = {"peak": (LOGIT_BYTES * tokens * classes, measure(step).peak_bytes)}
    return {"tokens": tokens, "classes": classes, "rows": _rows(rows)}


def examples() -> list[dict[str, Any]]:
    """Return the plans of a large model on 64 GPUs, by attention kind."""
    return [plan_to_record(plan_example(kind)) | {"attention": kind} for kind in EXAMPLE_KINDS]


def plan_example(kind: str) -> TrainingPlan:
    """Return the plan of the large model with this attention kind."""
    changes: dict[str, dict[str, Any]] = {"model": {**EXAMPLE_MODEL, "attention": kind}, "data": {"size": 32_000}}
    target = resolve_spec("text:small", changes=changes)
    step = make_step(target, parse_mesh(EXAMPLE_MESH), sizes={"n": EXAMPLE_TOKENS})
    return make_plan(step, find_gpu("h200"))


def measured_table(result: dict[str, Any]) -> str:
    """Return what meshes held and sent, planned and measured, in bytes."""
    lines = ["| mesh | | planned | measured |", "|---|---|---|---|"]
    for found in result["meshes"]:
        mesh = ",".join(part for part in found["mesh"].split(",") if not part.endswith("=1"))
        for name, row in found["rows"].items():
            lines.append(f"| `{mesh}` | {name} | {row['predicted']:,} | {row['measured']:,} |")
    return "\n".join(lines)


def example_table(result: dict[str, Any]) -> str:
    """Return the plans of the large model, by attention kind, without and with recomputation."""
    headings = (
        "attention",
        "recompute",
        "memory, GiB",
        "fits",
        "sent per step, GB",
        "at least, s",
        "tokens/s, at most",
    )
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for found in result["examples"]:
        for again, plan in found["recompute"].items():
            time = plan["time"]
            cells = (
                f"`{found['attention']}`",
                {"false": "no", "true": "yes"}[again],
                f"{plan['total_bytes'] / 2**30:,.0f}",
                "yes" if plan["fits"] else "no",
                f"{plan['bytes_sent'] / 1e9:,.0f}",
                f"{time['floor_seconds']:.3g}",
                f"{time['tokens_per_second']:,.0f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def terms_table(result: dict[str, Any], kind: str) -> str:
    """Return the memory terms of one plan of the large model."""
    (found,) = (one for one in result["examples"] if one["attention"] == kind)
    terms = {name: (term["bytes"], term["formula"]) for name, term in found["memory"]["terms"].items()}
    for again, name in (("false", "activations"), ("true", "activations with recompute")):
        terms[name] = found["recompute"][again]["activation_bytes"], "counted"
    lines = ["| on each GPU | GiB | formula |", "|---|---|---|"]
    lines += [f"| {name} | {size / 2**30:,.2f} | {formula} |" for name, (size, formula) in terms.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure, compare and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", action="store_true")
    if parser.parse_args().examples:
        print(json.dumps(examples(), indent=1))
        return
    torch.set_num_threads(1)
    record = {
        **about(),
        "command": "python -m benchmarks.plan",
        "meshes": [one for meshes in MESHES for one in measure_meshes(meshes)],
        "saved": [measure_saved(kind, *shape) for kind in KINDS for shape in SAVED],
        "logits": measure_logits(),
        "examples": examples(),
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(RESULTS)


if __name__ == "__main__":
    main()
