"""The files of a sharded checkpoint, in the safetensors layout of torch.distributed.checkpoint.

    shard-00001-model-00001-of-00001.safetensors    one per process: model.NAME  ema.NAME  best.NAME  optimizer.N.NAME

The header of a file says where each shard begins in its tensor. Nothing is pickled.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.storage.folder import read_manifest, verify_folder

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from qkv.train.ema import Weights

_PREFIX = "shard-"
Target = Callable[[str, str, torch.Size], Tensor | None]
"""State dict, name, shape -> a tensor like the one to read into; None: a complete tensor."""


def is_sharded(folder: Path) -> bool:
    """Return whether a checkpoint has the files of processes that share a model."""
    return any(name.startswith(_PREFIX) for name in read_manifest(folder))


def shard_file(rank: int) -> str:
    """Return the name of the file of a process."""
    return f"{_PREFIX}{rank + 1:05d}-model-00001-of-00001.safetensors"


def read_shards(folder: Path, chosen: str | None = None) -> "dict[str, Weights]":
    """Return complete state dicts, or the chosen one, from verified files."""
    verify_folder(folder)
    return read_into(folder, lambda *_: None, chosen)


def read_into(folder: Path, target: Target, chosen: str | None = None) -> "dict[str, Weights]":
    """Return state dicts; of a tensor that is sharded over processes, only the shard of this one is read."""
    # half a second of imports, which most trainings do not need
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_loader import load as load_tensors  # noqa: PLC0415

    found: dict[str, Weights] = {}
    try:
        reader = HuggingFaceStorageReader(str(folder))
        for key, saved in reader.read_metadata().state_dict_metadata.items():
            kind, _, name = key.partition(".")
            if chosen in (None, kind):
                metadata = cast("TensorStorageMetadata", saved)  # safetensors hold nothing else
                found.setdefault(kind, {})[name] = _make_empty(key, metadata, target(kind, name, metadata.size))
        flat = {f"{kind}.{name}": value for kind, weights in found.items() for name, value in weights.items()}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is no process group
            load_tensors(flat, storage_reader=reader, no_dist=True)
    except QkvError as error:
        raise QkvError(error.what, folder) from None
    except (Exception, CheckpointException) as error:  # whatever torch raises for files that it did not write
        raise QkvError(f"the shards cannot be read: {_first_reason(error)}", folder) from error
    return found


def _make_empty(key: str, metadata: "TensorStorageMetadata", like: Tensor | None) -> Tensor:
    """Return the tensor to read into; raise if the shards leave values out, or if it has another shape."""
    saved = sum(chunk.sizes.numel() for chunk in metadata.chunks)
    if saved != metadata.size.numel():
        raise QkvError(f"the shards of {key} have {saved:,} values, but its shape {tuple(metadata.size)} needs others")
    if like is None:
        return torch.empty(metadata.size, dtype=metadata.properties.dtype)
    if like.shape != metadata.size:
        raise QkvError(
            f"the checkpoint is of another model: {key} has shape {tuple(metadata.size)}, expected {tuple(like.shape)}"
        )
    return torch.empty_like(like)


def _first_reason(error: BaseException) -> str:
    """Return the first line of what a process reported."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    reason = next(iter(failures.values()))[0] if failures else error
    return f"{type(reason).__name__}: {(str(reason).strip().splitlines() or [''])[0]}"
