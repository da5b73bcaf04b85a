"""Attention kinds of ours inside models of the `transformers` library.

    qkv.interop.huggingface.register.register()
    model = AutoModel.from_pretrained(folder, attn_implementation="qkv_taylor")

A model learned with softmax answers worse with another kind until it is trained again: docs/huggingface.md says how
much. `transformers` itself forgets the kind when it saves, and would load a softmax model without a word: `save` writes
it into config.json, with what the model answers to a fixed input, and `load` proves that it still answers that.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.attention import kinds, parse
from qkv.errors import QkvError
from qkv.interop.huggingface.attention import attend_for
from qkv.interop.huggingface.files import PREFIX, read_config, refuse_pickles
from qkv.interop.huggingface.mask import mask_for
from qkv.storage import write_atomic

FORMAT = 1
"""Format of the record that `save` adds to config.json."""
RECORD = "qkv"
"""Where config.json keeps what `save` adds."""


def register(*others: str) -> list[str]:
    """Make every kind that can be named, and `others` such as "taylor(order=4)", known to `transformers`.

    Returns the names for `attn_implementation`: qkv_softmax, qkv_taylor, ... Each has its attention function and its
    mask function; without the second, `transformers` would hide no padding.
    """
    transformers = _transformers()
    names = []
    for text in (*filter(_can_be_named, kinds), *(other.strip() for other in others)):
        if getattr(parse(text), "window", None) is not None:
            raise ValueError(f"attention {text!r} has a window, which a model of transformers must bring itself")
        name = PREFIX + text
        transformers.AttentionInterface.register(name, attend_for(text))
        transformers.AttentionMaskInterface.register(name, mask_for(name))
        names.append(name)
    return names


def save(model: Any, folder: str | Path) -> None:
    """Save a model that runs on a kind of ours, with the kind: `load` and `from_pretrained` then take it up again."""
    kind = kind_of(model)
    folder = Path(folder)
    record = {"kind": kind, "format": FORMAT, "fingerprint": _fingerprint(model).tolist()}
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    named = {"attn_implementation": PREFIX + kind, RECORD: record}  # see `with_kind`; softmax of ours is named, too
    write_atomic(path, json.dumps({**config, **named}, indent=2).encode())


def load(folder: str | Path, **options: Any) -> Any:
    """The model that `save` wrote, on its kind; `options` are those of `from_pretrained`, such as dtype."""
    folder = Path(folder)
    config = read_config(folder)
    refuse_pickles(folder)
    kind, fingerprint = _read_record(config, folder)
    try:
        register(kind)
    except ValueError as error:
        raise QkvError(
            f"the config names an attention kind that is not here: {error}", folder / "config.json"
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


def kind_of(model: Any) -> str:
    """The kind of ours that a model of `transformers` runs on, such as taylor(order=4)."""
    name = model.config._attn_implementation
    if not str(name).startswith(PREFIX):
        raise ValueError(
            f"model runs on attn_implementation={name!r}, which is no kind of ours; register(), then "
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
    except ValueError:  # it has weights of its own, and nowhere to keep them in somebody else's model
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
                "config.json names no attention kind of ours: the model was not saved by qkv.interop.huggingface.register.save",
                folder,
            )
        case other:
            raise QkvError(f'config.json has an unreadable "{RECORD}" entry: {other!r}', folder)


@torch.no_grad()
def _fingerprint(model: Any) -> Tensor:
    """Eight numbers of what the model answers to a fixed row of tokens, of which the last two are padding."""
    if getattr(model, "main_input_name", "") != "input_ids":
        raise ValueError(f"model must read tokens, but {type(model).__name__} reads {model.main_input_name!r}")
    device = next(model.parameters()).device
    tokens = (torch.arange(1, 14, device=device) * 7)[None] % model.config.get_text_config().vocab_size
    mask = torch.arange(13, device=device)[None] < 11
    inputs = {"input_ids": tokens, "attention_mask": mask.long()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    training = model.training
    answer = model.eval()(**inputs)[0]
    model.train(training)
    return answer[0, 10].flatten()[:8].double().cpu()


def _check(now: Tensor, then: list[float], kind: str, folder: Path) -> None:
    """Within what another machine or half precision can do; another kind, or other weights, differ by more."""
    before = torch.tensor(then, dtype=torch.float64)
    size = max(float(before.abs().max()), 1e-9) if len(then) else 0.0
    if before.shape != now.shape or not float((now - before).abs().max()) <= 0.02 * size:
        raise QkvError(
            f"the model does not answer what it answered when it was saved on attention kind {kind!r}: its weights, "
            "its configuration or the kind have changed since (after more training, save it again with "
            "qkv.interop.huggingface.register.save)",
            folder,
        )
