"""The folder of a Hugging Face model: config.json and safetensors, and nothing that runs code."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from qkv.attention import Softmax, parse
from qkv.errors import QkvError
from qkv.models.attention_pattern import is_pattern
from qkv.storage import load_json, open_file, read_file, write_atomic
from qkv.storage.json import MAX_BYTES
from qkv.storage.safetensors_header import read_header

PREFIX = "qkv_"
"""Prefix of qkv kinds in `attn_implementation`."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WEIGHTS = "model.safetensors"
VOCABULARY_MULTIPLES = (1, 8, 16, 32, 64, 128, 256)
"""Embeddings may be padded to a multiple of one of these, which is faster."""
INDEX = "model.safetensors.index.json"
MAX_LISTED = 8
"""Maximum number of tensors that an error message lists."""

Shapes = dict[str, tuple[int, ...]]


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json."""
    return _read_object(folder / "config.json")


def kind_from_config(config: dict[str, Any], folder: Path, wanted: str | None = None) -> str:
    """Return the requested kind, else the qkv kind that the config names, else softmax."""
    if wanted is not None:
        parse(wanted)  # raises for a kind with weights, which the folder does not have
        return wanted
    name = str(config.get("attn_implementation") or "")
    if not name.startswith(PREFIX):
        return "softmax"
    kind = name.removeprefix(PREFIX)
    try:
        parse(kind)
    except ValueError as error:
        raise QkvError(
            f"the config names an attention kind that does not exist: {error}", folder / "config.json"
        ) from None
    return kind


def add_kind(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the config with the key `attn_implementation` for this kind; softmax needs none.

    `transformers` raises for a name that is not registered, so it never loads a model of another kind as softmax.
    It reads the key but does not write it, so it is added here.
    """
    if is_pattern(kind):
        raise ValueError(f"attention={kind!r} is a pattern, but a Hugging Face folder names one kind for all layers")
    return config if kind == Softmax().kind else config | {"attn_implementation": PREFIX + kind}


def require_safetensors(folder: Path) -> None:
    """Raise if the weights are only there as a pickle, which can run any code when it is read."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES) if folder.is_dir() else []
    if pickles:
        raise QkvError(
            f"{pickles[0]} is a pickle, which can run code when it is read, so it is not loaded; "
            f"save the model as {WEIGHTS}",
            folder,
        )


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor by name, from one file or from those that an index names."""
    require_safetensors(folder)
    return {name: header.shape for file in _weight_files(folder) for name, header in read_header(folder / file).items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors by name, in float32. Check their shapes first: this takes memory for all of them."""
    tensors: dict[str, Tensor] = {}
    for name in _weight_files(folder):
        with open_file(folder / name) as file:
            data = file.read()
        try:
            tensors |= load(data)
        except SafetensorError as error:
            raise QkvError(f"{name} is damaged or not safetensors ({error})", folder) from None
    return {name: x.to(torch.float32) if x.is_floating_point() else x for name, x in tensors.items()}


def _weight_files(folder: Path) -> list[str]:
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return [WEIGHTS]
    listed = _read_object(folder / INDEX).get("weight_map")
    files = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    if not files:
        raise QkvError(f"{INDEX} has no weight_map that names files", folder)
    for name in files:
        if Path(name).name != name:
            raise QkvError(f"{INDEX} names {name!r}, which is not a file of this folder", folder)
    return files


def require_floats(tensors: dict[str, Tensor], folder: Path) -> None:
    """Raise for a tensor of integers, which is none of weights."""
    wrong = next((name for name, x in tensors.items() if not x.is_floating_point()), None)
    if wrong is not None:
        raise QkvError(f"{wrong} has type {tensors[wrong].dtype}, but weights are floating-point numbers", folder)


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors, each atomically; raise if the folder already has a model."""
    for name in ("config.json", WEIGHTS):
        if (folder / name).exists():
            raise QkvError(f"there is a {name} already; choose another folder", folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the folder cannot be created ({error.strerror})", folder) from error
    plain = {name: x.to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    write_atomic(folder / WEIGHTS, save(plain, {"format": "pt"}))
    write_atomic(folder / "config.json", json.dumps({**config, "dtype": "float32"}, indent=2).encode())


def require_tensors(found: Shapes, needed: Shapes, where: Path) -> None:
    """Raise unless the tensors have these names and shapes; the error lists missing and extra ones."""
    missing, extra = sorted(needed.keys() - found.keys()), sorted(found.keys() - needed.keys())
    problems = [f"{what}: {_listed(names, ', ')}" for what, names in (("missing", missing), ("extra", extra)) if names]
    different = [
        f"{name} has shape {found[name]}, not {shape}"
        for name, shape in sorted(needed.items())
        if name in found and found[name] != shape
    ]
    problems += [_listed(different, "; ")] if different else []
    if problems:
        raise QkvError(f"the weights do not fit the configuration: {'; '.join(problems)}", where)


def _listed(items: list[str], separator: str) -> str:
    more = f"{separator}and {len(items) - MAX_LISTED:,} more" if len(items) > MAX_LISTED else ""
    return separator.join(items[:MAX_LISTED]) + more


def require_known_tensors(names: Iterable[str], known: Collection[str], layout: str, kind: str) -> None:
    """Raise for tensors that the format does not have: some kinds have weights or norms."""
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        raise ValueError(f"{layout} has no tensors for the weights of attention={kind!r}: {', '.join(unknown)}")


def require_tokenizer(folder: Path, tokens: int) -> None:
    """Raise if the folder has a tokenizer.json for another vocabulary size."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return
    record = _read_object(path)
    ids = _token_ids(record)
    if not all(type(number) is int for number in ids):
        raise QkvError("the file is not a tokenizer: some tokens have no id", path)
    size = max(ids, default=-1) + 1
    if tokens not in {-(-size // multiple) * multiple for multiple in VOCABULARY_MULTIPLES}:
        raise QkvError(
            f"the tokenizer has {size} tokens, but the weights have {tokens} vectors: they do not belong together", path
        )


def _token_ids(record: dict[str, Any]) -> list[Any]:
    """Return the id of every token of a tokenizer.json, None where it has no id."""
    match record.get("added_tokens") or []:
        case list(added):
            ids = [entry.get("id") if isinstance(entry, dict) else None for entry in added]
        case _:
            ids = [None]
    match record.get("model"):
        case {"vocab": dict(vocabulary)}:
            ids += vocabulary.values()
        case {"vocab": list(pieces)}:
            ids += range(len(pieces))
    return ids


def _read_object(path: Path) -> dict[str, Any]:
    return load_json(read_file(path, MAX_BYTES), path)
