"""Hostile run folders."""

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.hostile.case import Case, Damage, edit_json, make_sparse, replace_file, replace_node, run_case

CONFIG, VOCABULARY, DATA, WEIGHTS = "config.json", "vocabulary.json", "data.json", "model.safetensors"
INPUTS = {"xor": ["0,1"], "recall": [], "pairs": ["abc"], "recurrent": ["abc"], "text": ["The"], "words": []}
DEEP = 100_000


def predict(base: str) -> list[str]:
    """Return the command that loads this run."""
    if base == "words":
        return ["words", "nearest", "RUN", "the"]
    return ["predict", "RUN", *INPUTS[base]] if INPUTS[base] else ["eval", "RUN"]


def cases() -> list[Case]:
    """Return all cases of run folders."""
    return [*_sizes(), *_types(), *_vocabularies(), *_deep(), *_weights(), *_nodes()]


def _case(name: str, base: str, damage: Damage) -> Case:
    return run_case(f"{base}: {name}", base, damage, *predict(base))


def _model(base: str, name: str, value: Any) -> Case:
    return _case(f"model.{name} = {value!r:.40}", base, edit_json(CONFIG, "model", name, value=value))


def _sizes() -> list[Case]:
    values = {
        ("recall", "dim"): (10**6, 10**9, 10**12),
        ("recall", "layers"): (10**6, 10**9),
        ("recall", "heads"): (10**9,),
        ("recall", "key_dim"): (10**10,),
        ("recall", "hidden_dim"): (10**12, 2**63),
        ("recall", "attention"): ("taylor(order=30)", "taylor(order=1000000000)", f"taylor(order={10**30})"),
        ("recall", "max_length"): (2**70,),
        ("pairs", "dim"): (10**6, 10**12),
        ("pairs", "encoder_layers"): (10**6,),
        ("pairs", "decoder_layers"): (10**6, 10**12),
        ("pairs", "attention"): ("taylor(order=30)", "taylor(order=1000000000)"),
        ("pairs", "cross"): ("taylor(order=30)", "taylor(order=1000000000)"),
        ("pairs", "max_length"): (10**10, 2**62),
        ("pairs", "convolution"): (10**12,),
        ("recurrent", "dim"): (10**6, 10**12),
        ("recurrent", "layers"): (10**6,),
        ("text", "max_length"): (10**10, 2**63),
        ("text", "layers"): (10**6,),
        ("text", "hidden_dim"): (10**11,),
        ("xor", "hidden_dim"): (10**6, 10**12),
        ("xor", "layers"): (10**6, 10**10),
        ("words", "dim"): (10**9, 10**12),
    }
    return [_model(base, name, value) for (base, name), given in values.items() for value in given]


def _types() -> list[Case]:
    found = [_case(f"no {key}", "xor", edit_json(CONFIG, key, remove=True)) for key in ("task", "model", "train")]
    for key, value in {"task": 5, "family": [], "model": None, "train": [1], "data": "x", "format": "2"}.items():
        found.append(_case(f"{key} = {value!r}", "pairs", edit_json(CONFIG, key, value=value)))
    wrong = {"dim": "64", "heads": None, "dropout": "x", "attention": 5, "positions": {"a": 1}, "max_length": 1.5}
    found += [_model("pairs", name, value) for name, value in wrong.items()]
    found += [_model("recall", "heads", 0), _model("recall", "attention", "softmax(" * 5_000)]
    for value in (7, ["a"]):
        damage = edit_json(DATA, "sha256", value=value)
        found.append(run_case(f"pairs: hashes are {value}", "pairs", damage, "eval", "RUN"))
    found += [_case("data.source = 5", "text", edit_json(CONFIG, "data", "length", value=[5]))]
    return [*found, _case("config.json is a list", "xor", replace_file(CONFIG, b"[1, 2]"))]


def _vocabularies() -> list[Case]:
    values = {
        "pairs": [{}, {"sources": 5, "targets": {}}, {"sources": {"tokens": {"a": 1}}}, {"sources": None}],
        "recurrent": [{"sources": {"tokens": "abc"}, "targets": {"tokens": [1, 2]}}, {"tokens": []}],
        "xor": [{}, {"classes": 5}, _points(shape=["a"]), _points(shape=[10**9, 10**9]), _points(shape=[-1])],
        "text": [{}, {"tokenizer": 5}, {"tokenizer": {}}, {"tokenizer": {"model": {"vocab": 3}}}],
        "words": [{}, {"words": 3, "counts": 4}, {"words": ["a"], "counts": ["x"]}, {"words": [[]], "counts": [1]}],
    }
    values["xor"] += [_points(mean="x"), _points(mean=[]), _points(classes=[[1], {}]), _points(shape=2)]
    found = []
    for base, records in values.items():
        for record in records:
            data = json.dumps({"format": 2, **record}).encode()
            found.append(_case(f"vocabulary {record!r:.60}", base, replace_file(VOCABULARY, data)))
    return [*found, _case("vocabulary.json is a list", "pairs", replace_file(VOCABULARY, b"[]"))]


def _points(**changes: Any) -> dict[str, Any]:
    return {"classes": ["0", "1"], "shape": [2], "mean": [0.0], "deviation": [1.0], **changes}


def _deep() -> list[Case]:
    objects = b'{"format": 2, "a": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"
    lists = b'{"format": 2, "a": ' + b"[" * 900 + b"]" * 900 + b"}"
    wide = b'{"format": 2, "a": [' + b"[]," * 10_000_000 + b"1]}"
    found = [_case(f"deep {file}", "pairs", replace_file(file, objects)) for file in (CONFIG, VOCABULARY)]
    found += [run_case(f"pairs: deep {DATA}", "pairs", replace_file(DATA, objects), "eval", "RUN")]
    found += [_case(f"900 lists in {file}", "pairs", replace_file(file, lists)) for file in (CONFIG, VOCABULARY)]
    found += [_case(f"30 MB of lists in {file}", "pairs", replace_file(file, wide)) for file in (CONFIG, VOCABULARY)]
    nested: Any = 1
    for _ in range(400):
        nested = [nested]
    return [*found, _case("400 lists in model.dim", "recall", edit_json(CONFIG, "model", "dim", value=nested))]


def damaged_weights() -> dict[str, Damage]:
    """Return what can be wrong with a file of weights, by name."""

    def header(text: bytes, size: int | None = None) -> Damage:
        return replace_file(WEIGHTS, struct.pack("<Q", len(text) if size is None else size) + text)

    empty = ",".join(f'"t{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(1_000_000))
    beyond = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    return {
        "a million empty tensors": header(f"{{{empty}}}".encode()),
        "an empty file": replace_file(WEIGHTS, b""),
        "seven bytes": replace_file(WEIGHTS, b"1234567"),
        "noise": replace_file(WEIGHTS, bytes(range(256)) * 40),
        "a header of 2^63 bytes": header(b"{}", 2**63),
        "a header of 99 MB": header(b"{}", 99 * 10**6),
        "a header that is a list": header(b"[1]"),
        "a deep header": header(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
        "offsets beyond the file": header(beyond),
        "a header without tensors": header(b"{}"),
        "tensors that are numbers": header(b'{"a": 5, "__metadata__": 3}'),
        "a truncated file": lambda run: _truncate(run / WEIGHTS),
        "a file of 8 TB": lambda run: make_sparse(run / WEIGHTS, 2**43, struct.pack("<Q", len(beyond)) + beyond),
        "integers": lambda run: _change(run / WEIGHTS, lambda x: x.long()),
        "one more axis": lambda run: _change(run / WEIGHTS, lambda x: x[None].contiguous()),
        "half of each tensor": lambda run: _change(run / WEIGHTS, lambda x: x[: len(x) // 2].contiguous()),
    }


def _weights() -> list[Case]:
    return [_case(name, "recall", damage) for name, damage in damaged_weights().items()]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _change(path: Path, change: Any) -> None:
    tensors: dict[str, torch.Tensor] = load_file(path)
    save_file({name: change(x) for name, x in tensors.items()}, path)


def _nodes() -> list[Case]:
    nodes = {WEIGHTS: ("fifo", "zero", "folder", "socket", "random"), CONFIG: ("fifo", "zero", "socket")}
    nodes |= {VOCABULARY: ("fifo", "zero", "folder"), DATA: ("fifo", "zero")}
    return [
        run_case(
            f"pairs: {file} is {node}",
            "pairs",
            replace_node(file, node),
            *(["eval", "RUN"] if file == DATA else predict("pairs")),
        )
        for file, given in nodes.items()
        for node in given
    ]
