"""BERT in Hugging Face's format, loaded into an `Encoder` and saved back.

The tensors are equal, under other names: `qkv.models.encoder` has the table. A file may be that of a BertModel, or of a
BertForPreTraining with both heads. Older files use gamma and beta for the weights of a norm.
"""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.interop.huggingface.files import (
    Shapes,
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
from qkv.models import Encoder, EncoderConfig
from qkv.models.size_check import build_on_meta
from qkv.records import from_mapping

REQUIRED = {
    "hidden_act": ("gelu", "the feed-forward layers of an Encoder have no other activation"),
    "position_embedding_type": ("absolute", "learned positions are added to the input"),
    "is_decoder": (False, "an Encoder is bidirectional"),
    "add_cross_attention": (False, "an Encoder has no cross attention"),
}
"""Setting -> the only value that an Encoder supports, and why."""
IGNORED_TENSORS = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "embeddings.position_ids")
"""Tensors of some files that repeat others or hold no weights."""
_ENTRY = {
    "embed": "embeddings.word_embeddings",
    "positions.added.table": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pool": "pooler.dense",
}
_HEADS = {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence_head": "cls.seq_relationship",
}
_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "around_attention.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "around_feed_forward.norm": "output.LayerNorm",
}
_OURS = re.compile(r"(blocks)\.(\d+)\.(.+)")


def load_bert(folder: str | Path, attention: str | None = None) -> Encoder:
    """Load a folder with config.json and model.safetensors, in eval mode.

    The model has pretraining heads if the file has. `attention` replaces the kind that it was trained with, which costs
    quality until it is trained again: docs/huggingface.md has measurements.
    """
    folder = Path(folder)
    record = read_config(folder)
    shapes = {_modern(name): shape for name, shape in read_shapes(folder).items()}
    shapes = {name: shape for name, shape in shapes.items() if name not in IGNORED_TENSORS}
    pretraining = any(name.startswith("cls.") for name in shapes)
    config, sizes = _our_config(record, attention, pretraining, folder)
    names = _require_same_shapes(config, sizes, shapes, folder)
    require_tokenizer(folder, sizes[0])
    found = {_modern(name): x for name, x in read_weights(folder).items()}
    model = Encoder(config, *sizes)
    ours = {name: found[theirs] for name, theirs in names.items()}
    require_floats(ours, folder)
    model.load_state_dict(ours, strict=False)
    return model.eval()


def _require_same_shapes(config: EncoderConfig, sizes: tuple[int, int], shapes: Shapes, folder: Path) -> dict[str, str]:
    """Raise unless the file has the tensors of the model; return their names, ours to theirs.

    Nothing of their size is allocated.
    """
    if config.layers > len(shapes):
        raise QkvError(f"num_hidden_layers is {config.layers:,}, but there are {len(shapes):,} tensors", folder)
    try:
        ours = build_on_meta(lambda config: Encoder(config, *sizes), config).state_dict()
    except (RuntimeError, OverflowError) as error:
        raise QkvError(f"the sizes in config.json are too large ({str(error).splitlines()[0]})", folder) from None
    # the output norm of an unnormalized kind has no counterpart in BERT: it keeps its initial weights
    names = {name: _their_name(name) for name in ours if name != "lm_head.weight" and ".output_norm." not in name}
    require_tensors(shapes, {theirs: tuple(ours[name].shape) for name, theirs in names.items()}, folder)
    return names


def save_bert(model: Encoder, folder: str | Path) -> None:
    """Save a folder that `transformers` loads as BertModel, or with pretraining heads as BertForPreTraining.

    Another attention kind than softmax needs `qkv.interop.register_attention(model.config.attention)` before
    `from_pretrained`; without arguments it registers the kinds without options.
    """
    config = model.config
    record = _their_config(model)
    ours = {name: x.detach() for name, x in model.state_dict().items() if name != "lm_head.weight"}
    blocks = [name for name in ours if name.startswith("blocks.")]
    known = [name for name in blocks if name.split(".", 2)[2].rsplit(".", 1)[0] in _BLOCK]
    require_known_tensors(blocks, known, "BERT", config.attention)
    theirs: dict[str, Tensor] = {}
    for name, x in ours.items():
        found = _their_name(name)
        theirs[f"bert.{found}" if config.pretraining and not found.startswith("cls.") else found] = x
    write_model(Path(folder), record, theirs)


def _their_name(name: str) -> str:
    """Return Hugging Face's name: blocks.3.attention.query.bias -> encoder.layer.3.attention.self.query.bias."""
    if name == "lm_head.bias":
        return "cls.predictions.bias"
    whole, part = name.rsplit(".", 1)
    match = _OURS.fullmatch(whole)
    if match is not None:
        return f"encoder.layer.{match[2]}.{_BLOCK[match[3]]}.{part}"
    return f"{(_ENTRY | _HEADS)[whole]}.{part}"


def _modern(name: str) -> str:
    """Return a tensor name of any BERT file as current versions of BertModel have it."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _our_config(
    record: dict[str, Any], attention: str | None, pretraining: bool, folder: Path
) -> tuple[EncoderConfig, tuple[int, int]]:
    where = folder / "config.json"
    if record.get("model_type") != "bert":
        raise QkvError(f"model_type is {record.get('model_type')!r}, but bert is expected", where)
    for name, (needed, why) in REQUIRED.items():
        if record.get(name, needed) != needed:
            raise QkvError(f"{name} is {record[name]!r}, but only {needed!r} can be loaded: {why}", where)
    kind = kind_from_config(record, folder, attention)
    try:
        given = {
            "dim": record["hidden_size"],
            "heads": record["num_attention_heads"],
            "hidden_dim": record["intermediate_size"],
            "layers": record["num_hidden_layers"],
            "dropout": record.get("hidden_dropout_prob", 0.1),
            "attention": kind,
            "epsilon": record.get("layer_norm_eps", 1e-12),
            "pretraining": pretraining,
            "max_length": record["max_position_embeddings"],
        }
        config = from_mapping(EncoderConfig, given, "setting")
        return config, (int(record["vocab_size"]), int(record.get("type_vocab_size", 2)))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise QkvError(f"config.json does not describe a BERT: {reason}", folder) from None


def _their_config(model: Encoder) -> dict[str, Any]:
    config = model.config
    for name, value in {"positions": "learned", "norm": "after"}.items():
        if getattr(config, name) != value:
            raise ValueError(f"BERT has {name}={value!r}, but this Encoder has {getattr(config, name)!r}")
    if not config.hidden_dim or config.key_dim not in (None, config.dim // config.heads):
        raise ValueError(f"BERT has feed-forward layers and keys as wide as a head, but this Encoder has {config}")
    record = {
        "architectures": ["BertForPreTraining" if config.pretraining else "BertModel"],
        "model_type": "bert",
        "vocab_size": model.embed.num_embeddings,
        "type_vocab_size": model.segments.num_embeddings,
        "max_position_embeddings": config.max_length,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden_dim,
        "hidden_act": "gelu",
        "layer_norm_eps": config.epsilon,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
    }
    return add_kind(record, config.attention)
