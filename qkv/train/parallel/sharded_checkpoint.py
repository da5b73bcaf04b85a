"""Checkpoints of processes that share a model: each saves its shards, and each reads only its shards.

A checkpoint appears as a whole: all processes write into a folder of another name, rank 0 adds the checksums of all
files and renames it. Another mesh can read it, and so can a process that has the whole model.
"""

import os
import shutil
from collections.abc import Callable
from hashlib import file_digest
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.tensor import DTensor, distribute_tensor

from qkv.errors import QkvError
from qkv.storage.atomic import save_errors, write_synced
from qkv.storage.folder import commit_folder, list_steps, make_empty_folder, make_entries, read_manifest, verify_folder
from qkv.storage.format_1 import upgrade_state_dict
from qkv.storage.json import to_json
from qkv.train.checkpoint import (
    PROGRESS,
    Checkpoint,
    checkpoint_folder,
    load_checkpoint,
    progress_bytes,
    read_tensors,
    remove_older,
    require_no_nan,
)
from qkv.train.distributed import ProcessGroup
from qkv.train.ema import Weights
from qkv.train.parallel.shard_files import is_sharded, read_into, shard_file
from qkv.train.run import Run

T = TypeVar("T")


def save_sharded(group: ProcessGroup, run: Run, step: int, tensors: dict[str, Weights], record: dict[str, Any]) -> None:
    """Save the shards of all processes; all must call this."""
    needed = group.any(group.rank == 0 and run.needs_checkpoint(step))
    if not needed:
        return
    folder = checkpoint_folder(run.checkpoints, step)
    writer = int(group.sum(os.getpid() if group.rank == 0 else 0))
    temporary = folder.with_name(f"{folder.name}.tmp-{writer}")
    state = {f"{kind}.{name}": value for kind, weights in tensors.items() for name, value in weights.items()}
    try:
        if group.rank == 0:
            with save_errors(folder, 0):
                make_empty_folder(temporary)
        group.barrier()
        entries = _write_shards(group, state, temporary)
        if group.rank == 0:
            progress = progress_bytes(record)
            manifest = to_json({"files": entries | make_entries({PROGRESS: progress})})
            with save_errors(folder, len(progress) + len(manifest)):
                write_synced(temporary / PROGRESS, progress)
                commit_folder(temporary, folder, manifest)
            remove_older(run.checkpoints, step)
    except BaseException:
        if group.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_shards(group: ProcessGroup, state: Weights, folder: Path) -> dict[str, Any]:
    """Write the file of each process; return bytes and checksum of all of them."""
    try:
        save_tensors(_separate(state), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        rank, (reason, _) = next(iter(error.failures.items()))
        raise QkvError(f"rank {rank} cannot save its shards: {reason}", folder.parent) from error
    path, own = folder / shard_file(group.rank), {}
    if path.exists():  # a replica leaves what others have written
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        own[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    entries: list[dict[str, Any]] = [{} for _ in range(group.world_size)]
    dist.all_gather_object(entries, own)
    return {name: entry for each in entries for name, entry in sorted(each.items())}


def _separate(state: Weights) -> Weights:
    """Return the tensors without any two in the same memory, such as tied weights: safetensors cannot save those."""
    taken: set[int] = set()
    found = {}
    for key, value in state.items():
        place = _local(value).data_ptr()
        found[key] = value.detach().clone() if place in taken else value.detach()
        taken.add(place)
    return found


def load_sharded(
    group: ProcessGroup, run: Run, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Checkpoint | None:
    """Return the latest checkpoint that is valid for all processes, with the shards of this one; all must call this."""
    targets = model.state_dict()
    parameters = [parameter for each in optimizer.param_groups for parameter in each["params"]]

    def find_target(kind: str, name: str, shape: torch.Size) -> Tensor | None:
        if kind != "optimizer":
            return targets.get(name)
        number = name.partition(".")[0]
        like = parameters[int(number)].detach() if number.isdigit() and int(number) < len(parameters) else None
        return like if shape else None  # a scalar is the count of steps, which every process has

    def read(folder: Path, _: str | None) -> dict[str, Weights]:
        names = sorted(read_manifest(folder))
        own = set(names[group.rank :: group.world_size])  # each file is verified by one process
        _agree(group, folder, lambda: verify_folder(folder, own.__contains__))
        return _agree(group, folder, lambda: read_own(folder))

    def read_own(folder: Path) -> dict[str, Weights]:
        if is_sharded(folder):
            tensors = read_into(folder, find_target)
        else:
            whole = read_tensors(folder)
            upgraded = {kind: upgrade_state_dict(x, targets) if kind != "optimizer" else x for kind, x in whole.items()}
            tensors = {kind: shard(kind, weights) for kind, weights in upgraded.items()}
        for kind, weights in tensors.items():
            require_no_nan({name: _local(value) for name, value in weights.items()}, kind, folder)
        return tensors

    def shard(kind: str, weights: Weights) -> Weights:
        return {name: _like(value, find_target(kind, name, value.shape)) for name, value in weights.items()}

    newest = max((step for step, _ in list_steps(run.checkpoints)), default=0)
    if group.sum(newest) != newest * group.world_size:
        raise QkvError(f"not all processes found the checkpoint of step {newest}; they must share", run.folder)
    return load_checkpoint(run.checkpoints, read=read)


def _like(whole: Tensor, target: Tensor | None) -> Tensor:
    """Return a complete tensor sharded like the target; without communication, since all processes have it."""
    if not isinstance(target, DTensor) or whole.shape != target.shape:
        return whole
    whole = whole.to(target.device)
    return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)


def _agree(group: ProcessGroup, folder: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns; raise in all processes if it raises in one."""
    result: T | None = None
    problem: QkvError | None = None
    try:
        result = read()
    except QkvError as error:
        problem = error
    if group.any(problem is not None):
        raise problem or QkvError("another process found it damaged", folder)
    return cast("T", result)


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
