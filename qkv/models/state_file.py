"""Decoding states as files: a prompt is encoded once, and continued on any day by the same model.

    save_state("start.safetensors", model, state)
    state = load_state("start.safetensors", model)

The file is safetensors. Its metadata hold a fingerprint of the model and a checksum of everything: the state of
another model, and a damaged file, are refused. The loaded state continues with the same bits on the same machine.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qkv.attention import Attention
from qkv.attention.state import StateValue
from qkv.errors import QkvError
from qkv.layers import MultiHead
from qkv.storage import write_atomic
from qkv.storage.safetensors_header import read_header

FORMAT = 1
"""Version of the layout of these files."""

S = TypeVar("S", bound=StateValue)


def fingerprint(model: nn.Module) -> str:
    """Return a checksum of the model's structure and weights, equal on every machine and device."""
    digest = sha256(repr(model).encode())
    for name, x in model.state_dict().items():
        if not isinstance(x, Tensor) or x.is_quantized:
            raise TypeError(f"model has {name}, a {type(x).__name__} that has no fingerprint; use the model in floats")
        _add(digest, name, x)
    return digest.hexdigest()


def save_state(path: str | Path, model: nn.Module, state: StateValue) -> None:
    """Write the state of a model, or of an attention mechanism, to a file; atomically."""
    if not isinstance(state, StateValue):
        raise TypeError(f"state must be a decoding state that can be saved, got a {type(state).__name__}")
    # clones, because a file has no tensors that share memory
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in state.tensors().items()}
    metadata = {"format": str(FORMAT), "state": type(state).__name__, "model": fingerprint(model)}
    metadata["sha256"] = _checksum(metadata, tensors)
    write_atomic(Path(path), save(tensors, metadata))


def load_state(path: str | Path, model: Any, template: S | None = None) -> S:
    """Return the state that `save_state` wrote for this model, on the model's device.

    `template` is any state of the same class and options, such as that of `start` (default: of a model's `start`).
    """
    path = Path(path)
    expected: Any = _first_state(model) if template is None else template
    metadata, tensors = _read(path)
    own = type(expected).__name__
    if metadata["state"] != own:
        raise QkvError(f"{path.name} holds a {metadata['state']}, but the state of this model is a {own}", path.parent)
    if metadata["model"] != fingerprint(model):
        raise QkvError(
            f"{path.name} is the state of another model: its weights or sizes differ from this one's", path.parent
        )
    moved = {name: x.to(expected.device) if x.dim() else x for name, x in tensors.items()}
    try:
        loaded: S = expected.with_tensors(moved)
    except KeyError as error:
        raise QkvError(f"{path.name} has no {error}, which a state like `template` holds", path.parent) from None
    return loaded


def _first_state(model: Any) -> Any:
    """Return the state of a model after one token."""
    if isinstance(model, Attention | MultiHead):
        raise TypeError(f"template must be given for a {type(model).__name__}: any state of its `start`")
    if not hasattr(model, "start"):
        raise TypeError(f"model must decode step by step, but a {type(model).__name__} has no `start`")
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        return model.start(torch.zeros(1, 1, dtype=torch.int64, device=device), None)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return metadata and tensors; raise for a file that is damaged, or not a state."""
    read_header(path)  # sizes are checked before anything is allocated
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise QkvError(f"{path.name} is damaged or not safetensors ({error})", path.parent) from None
    if not {"format", "state", "model", "sha256"} <= metadata.keys():
        raise QkvError(f"{path.name} holds tensors, but not the state of a model", path.parent)
    if metadata["format"] != str(FORMAT):
        raise QkvError(
            f"{path.name} has format {metadata['format']}, but this version of qkv reads up to {FORMAT}", path.parent
        )
    checksum = metadata.pop("sha256")
    if checksum != _checksum(metadata, tensors):
        raise QkvError(f"{path.name} is damaged: its checksum is not that of its contents", path.parent)
    return metadata, tensors


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, x in sorted(tensors.items()):
        _add(digest, name, x)
    return digest.hexdigest()


def _add(digest: Any, name: str, x: Tensor) -> None:
    """Add a tensor's name, type, shape and bytes."""
    digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
    # no copy of one that is contiguous on the CPU
    digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
