"""Hostile Hugging Face folders."""

import json
from typing import Any

from tests.hostile.case import Case, Damage, edit_json, replace_file, replace_node, run_case
from tests.hostile.run_cases import CONFIG, DEEP, WEIGHTS, damaged_weights

COMMANDS = {"bert": ["predict", "RUN", "the [MASK] sat"], "gpt2": ["predict", "RUN", "The"]}
TOKENIZER, INDEX = "tokenizer.json", "model.safetensors.index.json"


def cases() -> list[Case]:
    """Return all cases of Hugging Face folders."""
    return [*_configs(), *_tokenizers(), *_files()]


def _case(name: str, base: str, damage: Damage) -> Case:
    return run_case(f"{base}: {name}", base, damage, *COMMANDS[base])


def _configs() -> list[Case]:
    values: dict[tuple[str, str], tuple[Any, ...]] = {
        ("bert", "hidden_size"): (10**6, 10**12, "64", None),
        ("bert", "num_hidden_layers"): (10**6, -1),
        ("bert", "intermediate_size"): (10**12,),
        ("bert", "vocab_size"): (10**9, 10**15),
        ("bert", "type_vocab_size"): (10**12,),
        ("bert", "max_position_embeddings"): (10**10, [5]),
        ("bert", "num_attention_heads"): (0, 10**9),
        ("bert", "layer_norm_eps"): ("x",),
        ("bert", "attn_implementation"): ("qkv_taylor(order=30)", "qkv_((("),
        ("gpt2", "n_embd"): (10**6, 10**12, [8]),
        ("gpt2", "n_layer"): (10**6, 10**9),
        ("gpt2", "n_inner"): (10**12,),
        ("gpt2", "n_positions"): (10**10, 2**63),
        ("gpt2", "vocab_size"): (10**15, "many"),
        ("gpt2", "n_head"): (0, 7),
        ("gpt2", "activation_function"): ([], {"a": 1}),
        ("gpt2", "attn_implementation"): ("qkv_taylor(order=1000000000)",),
        ("gpt2", "model_type"): ("nothing",),
    }
    return [
        _case(f"{name} = {value!r:.40}", base, edit_json(CONFIG, name, value=value))
        for (base, name), given in values.items()
        for value in given
    ]


def _tokenizers() -> list[Case]:
    texts = {
        "{}": b"{}",
        "a list": b"[]",
        "a vocabulary of numbers": json.dumps({"model": {"vocab": 5}}).encode(),
        "ids that are texts": json.dumps({"model": {"vocab": {"a": "b"}}}).encode(),
        "added tokens that are numbers": json.dumps({"added_tokens": [1], "model": {}}).encode(),
        "added tokens without ids": json.dumps({"added_tokens": [{}], "model": {}}).encode(),
        "a model that is a text": json.dumps({"model": "x"}).encode(),
        "deep JSON": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    }
    return [
        _case(f"tokenizer.json with {name}", base, replace_file(TOKENIZER, data))
        for base in COMMANDS
        for name, data in texts.items()
    ]


def _files() -> list[Case]:
    deep = b'{"model_type": "bert", "a": ' + b"[" * DEEP + b"]" * DEEP + b"}"
    found = [_case("deep config.json", base, replace_file(CONFIG, deep)) for base in COMMANDS]
    for file, nodes in {WEIGHTS: ("fifo", "zero"), CONFIG: ("fifo", "zero"), TOKENIZER: ("fifo", "folder")}.items():
        found += [_case(f"{file} is {node}", base, replace_node(file, node)) for base in COMMANDS for node in nodes]
    found += [_case(name, base, damage) for base in COMMANDS for name, damage in damaged_weights().items()]
    for listed in ({"a": "../../x"}, {"a": 5}, [1], {"a": "/dev/zero"}):
        found.append(_case(f"index of {listed}", "bert", _index(listed)))
    return found


def _index(listed: Any) -> Damage:
    def damage(run: Any) -> None:
        (run / WEIGHTS).unlink()
        (run / INDEX).write_text(json.dumps({"weight_map": listed}))

    return damage
