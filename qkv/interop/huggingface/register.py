"""qkv attention kinds inside models of the `transformers` library.

    qkv.interop.register_attention()
    model = AutoModel.from_pretrained(folder, attn_implementation="qkv_taylor")

A model trained with softmax loses quality with another kind until it is trained again: docs/huggingface.md has
measurements. `transformers` does not save the kind, and would silently load a softmax model. `save_pretrained` writes
it into config.json, with the output for a fixed input, and `load_pretrained` checks that the output is the same.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.attention import kinds, parse
from qkv.errors import QkvError
from qkv.interop.huggingface.attention import make_attention_function
from qkv.interop.huggingface.files import PREFIX, read_config, require_safetensors
from qkv.interop.huggingface.mask import make_mask_function
from qkv.storage import write_atomic

FORMAT = 1
"""Format of the record that `save_pretrained` adds to config.json."""
RECORD = "qkv"
"""Key of that record."""


def register_attention(*others: str) -> list[str]:
    """Register every kind without weights, and `others` such as "taylor(order=4)", with `transformers`.

    Return the names for `attn_implementation`: qkv_softmax, qkv_taylor, ... Each gets an attention function and a mask
    function; without a mask function, `transformers` would not hide padding.
    """
    transformers = _transformers()
    names = []
    for text in (*filter(_can_be_named, kinds), *(other.strip() for other in others)):
        if getattr(parse(text), "window", None) is not None:
            raise ValueError(f"attention {text!r} has a window, but in transformers a window is a setting of the model")
        name = PREFIX + text
        transformers.AttentionInterface.register(name, make_attention_function(text))
        transformers.AttentionMaskInterface.register(name, make_mask_function(name))
        names.append(name)
    return names


def save_pretrained(model: Any, folder: str | Path) -> None:
    """Save a model with its qkv attention kind, which `load_pretrained` and `from_pretrained` then use."""
    kind = attention_kind(model)
    folder = Path(folder)
    record = {"kind": kind, "format": FORMAT, "fingerprint": _fingerprint(model).tolist()}
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    named = {"attn_implementation": PREFIX + kind, RECORD: record}  # see `add_kind`; here softmax is named, too
    write_atomic(path, json.dumps({**config, **named}, indent=2).encode())


def load_pretrained(folder: str | Path, **options: Any) -> Any:
    """Load a model of `save_pretrained` with its kind; `options` are those of `from_pretrained`, such as dtype."""
    folder = Path(folder)
    config = read_config(folder)
    require_safetensors(folder)
    kind, fingerprint = _read_record(config, folder)
    try:
        register_attention(kind)
    except ValueError as error:
        raise QkvError(
            f"the config names an attention kind that does not exist: {error}", folder / "config.json"
        ) from None
    cls = getattr(_transformers(), (config.get("architectures") or ["AutoModel"])[0])
    model, found = cls.from_pretrained(
        folder, attn_implementation=PREFIX + kind, output_loading_info=True, local_files_only=True, **options
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found[what]:
            raise QkvError(f"the weights have {what.replace('_', ' ')}: {', '.join(map(str, found[what]))}", folder)
    _check(_fingerprint(model), fingerprint, kind, folder)
    return model


def attention_kind(model: Any) -> str:
    """Return the qkv kind that a model of `transformers` uses, such as taylor(order=4)."""
    name = model.config._attn_implementation
    if not str(name).startswith(PREFIX):
        raise ValueError(
            f"model has attn_implementation={name!r}, which is not a qkv kind; call register_attention(), then "
            f'model.set_attn_implementation("{PREFIX}taylor")'
        )
    return str(name).removeprefix(PREFIX)


def _transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415
    except ImportError:
        raise QkvError('the package transformers is not installed: pip install "qkv[transformers]"') from None
    return transformers


def _can_be_named(kind: str) -> bool:
    try:
        parse(kind)
    except ValueError:  # it has weights, which a model of transformers cannot hold
        return False
    return True


def _read_record(config: dict[str, Any], folder: Path) -> tuple[str, list[float]]:
    match config.get(RECORD):
        case {"format": int(number)} if number > FORMAT:
            raise QkvError(
                f'"{RECORD}" of config.json has format {number}, but this version reads up to {FORMAT}', folder
            )
        case {"kind": str(kind), "fingerprint": [*numbers]} if all(isinstance(x, float | int) for x in numbers):
            return kind, [float(x) for x in numbers]
        case None:
            raise QkvError(
                "config.json names no qkv attention kind: the model was not saved by qkv.interop.save_pretrained",
                folder,
            )
        case other:
            raise QkvError(f'config.json has an unreadable "{RECORD}" entry: {other!r}', folder)


@torch.no_grad()
def _fingerprint(model: Any) -> Tensor:
    """Return eight output values for a fixed row of tokens, the last two of which are padding."""
    if getattr(model, "main_input_name", "") != "input_ids":
        raise ValueError(f"model must read tokens, but {type(model).__name__} reads {model.main_input_name!r}")
    device = next(model.parameters()).device
    tokens = (torch.arange(1, 14, device=device) * 7)[None] % model.config.get_text_config().vocab_size
    mask = torch.arange(13, device=device)[None] < 11
    inputs = {"input_ids": tokens, "attention_mask": mask.long()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    training = model.training
    output = model.eval()(**inputs)[0]
    model.train(training)
    return output[0, 10].flatten()[:8].double().cpu()


def _check(now: Tensor, then: list[float], kind: str, folder: Path) -> None:
    """Raise if the outputs differ by more than another machine or half precision explains."""
    before = torch.tensor(then, dtype=torch.float64)
    size = max(float(before.abs().max()), 1e-9) if len(then) else 0.0
    if before.shape != now.shape or not float((now - before).abs().max()) <= 0.02 * size:
        raise QkvError(
            f"the output of the model is not the one it was saved with on attention kind {kind!r}: its weights, "
            "its configuration or the kind have changed since (after more training, save it again with "
            "qkv.interop.save_pretrained)",
            folder,
        )
