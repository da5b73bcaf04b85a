"""Decoding states as files: a prompt is encoded once, and continued on any day by the same model.

    save_state("start.safetensors", model, state)
    state = load_state("start.safetensors", model)

The file is safetensors. Its metadata hold a fingerprint of the model and a checksum of the tensors: the state of
another model, and a damaged file, are refused.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from qkv.attention.state import StateValue
from qkv.errors import QkvError
from qkv.storage import write_atomic
from qkv.storage.safetensors_header import read_header

FORMAT = "1"
"""Version of the layout of these files."""

S = TypeVar("S", bound=StateValue)


def fingerprint(model: nn.Module) -> str:
    """Return a checksum of the model's structure and weights, equal on every machine and device."""
    digest = sha256(repr(model).encode())
    for name, x in model.state_dict().items():
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        digest.update(_bytes(x))
    return digest.hexdigest()


def save_state(path: str | Path, model: nn.Module, state: StateValue) -> None:
    """Write the state of a model, or of an attention mechanism, to a file; atomically."""
    tensors = {name: x.detach().cpu().contiguous() for name, x in state.tensors().items()}
    metadata = {
        "format": FORMAT,
        "state": type(state).__name__,
        "model": fingerprint(model),
        "sha256": _checksum(tensors),
    }
    write_atomic(Path(path), save(tensors, metadata))


def load_state(path: str | Path, model: Any, template: S | None = None) -> S:
    """Return the state that `save_state` wrote for this model, on the model's device.

    `template` is any state of the same class and options (default: that of `model.start` after one token).
    """
    path = Path(path)
    expected: Any = template
    if template is None:
        device = next(model.parameters()).device
        with torch.no_grad():
            expected = model.start(torch.zeros(1, 1, dtype=torch.int64, device=device), None)
    metadata, tensors = _read(path)
    if metadata.get("state") != type(expected).__name__:
        raise QkvError(
            f"{path.name} holds a state of class {metadata.get('state')}, but this model has a "
            f"{type(expected).__name__}",
            path.parent,
        )
    if metadata.get("model") != fingerprint(model):
        raise QkvError(
            f"{path.name} is the state of another model: its weights or sizes differ from this one's", path.parent
        )
    if metadata.get("sha256") != _checksum(tensors):
        raise QkvError(f"{path.name} is damaged: its checksum is not that of its tensors", path.parent)
    first = next(iter(expected.tensors().values()))
    loaded: S = expected.with_tensors({name: x.to(first.device) if x.dim() else x for name, x in tensors.items()})
    return loaded


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return metadata and tensors; raise for a file that is damaged, or not a state."""
    read_header(path)  # sizes are checked before anything is allocated
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise QkvError(f"{path.name} is damaged or not safetensors ({error})", path.parent) from None
    if "state" not in metadata:
        raise QkvError(f"{path.name} has no state of a model, only tensors", path.parent)
    if metadata.get("format") != FORMAT:
        raise QkvError(f"{path.name} has format {metadata.get('format')}; this version reads {FORMAT}", path.parent)
    return metadata, tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        digest.update(_bytes(x))
    return digest.hexdigest()


def _bytes(x: Tensor) -> Any:
    """Return the bytes of a tensor, without a copy if it is contiguous on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
