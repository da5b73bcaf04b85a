"""GPT-2 in Hugging Face's format, loaded into a `Decoder` and saved back.

    wte, wpe, ln_f                          embed, positions.added.table, norm
    h.N.ln_1, h.N.attn.c_attn, c_proj       blocks.N.around_attention.norm, attention.{query, key, value}, output
    h.N.ln_2, h.N.mlp.c_fc, c_proj          blocks.N.around_feed_forward.norm, feed_forward.{up, down}

GPT-2's matrices are transposed, and one holds queries, keys and values. A `Decoder` multiplies embeddings by sqrt(dim),
GPT-2 does not; both tie the output layer to them. So the embeddings are divided by s = sqrt(dim), and the last norm,
which feeds the output layer only, is multiplied by it: W/s (s g x + s b) = W (g x + b).
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.interop.huggingface.files import (
    add_kind,
    kind_from_config,
    read_config,
    read_shapes,
    read_weights,
    require_floats,
    require_known_tensors,
    require_tensors,
    require_tokenizer,
    write_model,
)
from qkv.models import Decoder, DecoderConfig
from qkv.records import from_mapping

Entry = TypeVar("Entry")

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}
"""Hugging Face's name -> qkv's name."""
CAUSAL_MASKS = re.compile(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias")
"""Causal masks in old files, which are not weights."""
REQUIRED = {
    "scale_attn_weights": (True, "scores are always divided by the root of the width"),
    "scale_attn_by_inverse_layer_idx": (False, "layers are not scaled by their index"),
    "add_cross_attention": (False, "a Decoder has no cross attention"),
    "layer_norm_epsilon": (1e-5, "every norm of a Decoder has this epsilon"),
}
"""Setting -> the only value that a Decoder supports, and why."""


def load_gpt2(folder: str | Path, attention: str | None = None) -> Decoder:
    """Load a folder with config.json and model.safetensors, in eval mode.

    `attention` replaces the kind that it was trained with, which costs quality until it is trained again.
    """
    folder = Path(folder)
    record = read_config(folder)
    config, tokens = _our_config(record, attention, folder)
    require_tensors(_select(read_shapes(folder), config), _shapes(config, tokens), folder)
    require_tokenizer(folder, tokens)
    found = _select(read_weights(folder), config)
    require_floats(found, folder)
    model = Decoder(config, tokens)
    fresh = model.load_state_dict(_to_ours(found, config), strict=False).missing_keys
    # the output norm of an unnormalized kind has no counterpart in GPT-2: it keeps its initial weights
    assert all(".output_norm." in name for name in fresh), fresh
    return model.eval()


def _select(entries: dict[str, Entry], config: DecoderConfig) -> dict[str, Entry]:
    """Return the entries of a file that are weights, by their names without the common prefix."""
    weights = {name: entry for name, entry in entries.items() if not CAUSAL_MASKS.fullmatch(name)}
    found = {name.removeprefix("transformer."): entry for name, entry in weights.items()}
    if config.tied:
        found.pop("lm_head.weight", None)
    return found


def save_gpt2(model: Decoder, folder: str | Path) -> None:
    """Save a folder that `transformers` loads as GPT2LMHeadModel; raise for weights that GPT-2 does not have.

    Another attention kind than softmax needs `qkv.interop.register_attention(model.config.attention)` before
    `from_pretrained`; without arguments it registers the kinds without options.
    """
    tokens = model.embed.num_embeddings
    record = _their_config(model.config, tokens)
    theirs = {f"transformer.{name}": x for name, x in _to_theirs(model).items() if name != "lm_head.weight"}
    if not model.config.tied:
        theirs["lm_head.weight"] = model.lm_head.weight.detach()
    write_model(Path(folder), record, theirs)


def _our_config(record: dict[str, Any], attention: str | None, folder: Path) -> tuple[DecoderConfig, int]:
    where = folder / "config.json"
    if record.get("model_type") != "gpt2":
        raise QkvError(f"model_type is {record.get('model_type')!r}, but gpt2 is expected", where)
    for name, (needed, why) in REQUIRED.items():
        if record.get(name, needed) != needed:
            raise QkvError(f"{name} is {record[name]!r}, but only {needed!r} can be loaded: {why}", where)
    activation = record.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise QkvError(f"activation_function is {activation!r}, but there are: {', '.join(ACTIVATIONS)}", where)
    kind = kind_from_config(record, folder, attention)
    try:
        dim = record["n_embd"]
        given = {
            "dim": dim,
            "heads": record["n_head"],
            "hidden_dim": record.get("n_inner") or 4 * dim,
            "layers": record["n_layer"],
            "dropout": record.get("resid_pdrop", 0.1),
            "attention": kind,
            "positions": "learned",
            "tied": record.get("tie_word_embeddings", True),
            "activation": ACTIVATIONS[activation],
            "max_length": record["n_positions"],
        }
        config = from_mapping(DecoderConfig, given, "setting")
        return config, int(record["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise QkvError(f"config.json does not describe a GPT-2: {reason}", folder) from None


def _their_config(config: DecoderConfig, tokens: int) -> dict[str, Any]:
    needed = {"positions": "learned", "convolution": 0}
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(f"GPT-2 has {name}={value!r}, but this Decoder has {getattr(config, name)!r}")
    if config.activation not in ACTIVATIONS.values():
        raise ValueError(f"GPT-2 has no activation={config.activation!r}, only {', '.join(ACTIVATIONS.values())}")
    if not config.hidden_dim or config.key_dim not in (None, config.dim // config.heads):
        raise ValueError(f"GPT-2 has feed-forward layers and keys as wide as a head, but this Decoder has {config}")
    theirs = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    record = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": tokens,
        "n_positions": config.max_length,
        "n_embd": config.dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.hidden_dim,
        "activation_function": theirs[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": config.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return add_kind(record, config.attention)


def _shapes(config: DecoderConfig, tokens: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of GPT-2, by its name without the common prefix."""
    dim, hidden = config.dim, config.hidden_dim
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (tokens, dim), "wpe.weight": (config.max_length, dim)}
    if not config.tied:
        shapes["lm_head.weight"] = (tokens, dim)
    shapes |= {"ln_f.weight": (dim,), "ln_f.bias": (dim,)}
    matrices = {"attn.c_attn": (dim, 3 * dim), "attn.c_proj": (dim, dim), "mlp.c_fc": (dim, hidden)}
    for layer in range(config.layers):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.weight": (dim,), f"h.{layer}.{norm}.bias": (dim,)}
        for name, shape in {**matrices, "mlp.c_proj": (hidden, dim)}.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
    return shapes


_BLOCK = {
    "around_attention.norm": "ln_1",
    "attention.output": "attn.c_proj",
    "around_feed_forward.norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
"""qkv -> Hugging Face, except the query, key and value projections, which are one tensor in GPT-2."""
_HEADS = ("query", "key", "value")


def _to_ours(theirs: dict[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    size = config.dim**0.5
    last = size if config.tied else 1.0
    ours = {
        "embed.weight": theirs["wte.weight"] / size,
        "positions.added.table.weight": theirs["wpe.weight"],
        "norm.weight": theirs["ln_f.weight"] * last,
        "norm.bias": theirs["ln_f.bias"] * last,
    }
    ours["lm_head.weight"] = ours["embed.weight"] if config.tied else theirs["lm_head.weight"]
    for layer in range(config.layers):
        for part in ("weight", "bias"):
            for name, their_name in _BLOCK.items():
                ours[f"blocks.{layer}.{name}.{part}"] = theirs[f"h.{layer}.{their_name}.{part}"].t()
            together = theirs[f"h.{layer}.attn.c_attn.{part}"].t()
            for name, x in zip(_HEADS, together.chunk(3, 0), strict=True):
                ours[f"blocks.{layer}.attention.{name}.{part}"] = x
    return ours


def _to_theirs(model: Decoder) -> dict[str, Tensor]:
    config, ours = model.config, {name: x.detach() for name, x in model.state_dict().items()}
    parts = (*_BLOCK, *(f"attention.{name}" for name in _HEADS))
    known = {f"blocks.{n}.{name}.{part}" for n in range(config.layers) for name in parts for part in ("weight", "bias")}
    require_known_tensors((name for name in ours if name.startswith("blocks.")), known, "GPT-2", config.attention)
    size = config.dim**0.5
    last = size if config.tied else 1.0
    theirs = {
        "wte.weight": ours["embed.weight"] * size,
        "wpe.weight": ours["positions.added.table.weight"],
        "ln_f.weight": ours["norm.weight"] / last,
        "ln_f.bias": ours["norm.bias"] / last,
    }
    for layer in range(config.layers):
        for part in ("weight", "bias"):
            for name, their_name in _BLOCK.items():
                theirs[f"h.{layer}.{their_name}.{part}"] = ours[f"blocks.{layer}.{name}.{part}"].t()
            heads = [ours[f"blocks.{layer}.attention.{name}.{part}"] for name in _HEADS]
            theirs[f"h.{layer}.attn.c_attn.{part}"] = torch.cat(heads).t()
    return theirs
