"""Screen 3, softmax beside a linear kind: both matrices of one head, their difference, and when copying works."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qkv.attention import Attention, FeatureMap, build, kinds, parse
from qkv.explain import compare_kinds, copying
from qkv.web.params import choice_of, whole_of
from qkv.web.view_model import ModelScene, averages
from qkv.web.wire import Answer

QUARTERS = 16
"""The largest beta is a quarter of it."""
MOST_TOKENS = 1024
MOST_WORK = 300_000_000
"""Numbers of the state times tokens: some seconds."""


def offered() -> list[str]:
    """Kinds that can stand beside softmax: all that are registered and have no weights of their own."""
    found = []
    for name in kinds:
        try:
            build(name)
        except (TypeError, ValueError):
            continue
        if name != "softmax":
            found += [name, "taylor(order=4)"] if name == "taylor" else [name]
    return sorted(found, key=lambda name: not name.startswith("taylor"))


def beside(scene: ModelScene, asked: Mapping[str, Any]) -> Answer:
    """One head of a model through softmax and through another kind."""
    choices = offered()
    kind = choice_of(asked, "kind", choices[0], choices)
    place = whole_of(asked, "place", 0, 0, len(scene.places) - 1)
    head = whole_of(asked, "head", 0, 0, scene.places[place].heads - 1)
    call = scene.looks[place].head(head)
    attention = parse(kind)
    _refuse_large(attention, kind, call.k.shape[2], call.k.shape[3], call.v.shape[3])
    found = compare_kinds(call, attention)
    left_out = [name for name in ("bias", "decay") if call.options.get(name) is not None]
    record = {
        "kind": kind,
        "model_kind": call.attention.kind,
        "averages": averages(attention),
        "causal": scene.places[place].causal,
        "left_out": left_out,
        "features": found.features,
        "value_dim": call.v.shape[-1],
        "key_dim": call.k.shape[-1],
        "difference": float((found.implied - found.exact).abs().max()),
        "recurrence": found.recurrence,
        "orders": [asdict(order) for order in found.orders],
    }
    tensors = {"exact": found.exact, "implied": found.implied, "scores": found.scores, "growth": found.growth}
    return Answer(record, tensors)


def copying_at(asked: Mapping[str, Any]) -> Answer:
    """The three tokens of the copying problem at every beta up to the largest; small enough to send at once."""
    choices = ["softmax", *offered()]
    kind = choice_of(asked, "kind", "softmax", choices)
    return Answer(
        {
            "kind": kind,
            "betas": [quarter / 4 for quarter in range(1, QUARTERS + 1)],
            "results": [asdict(copying(quarter / 4, _scaled(kind))) for quarter in range(1, QUARTERS + 1)],
        }
    )


def _refuse_large(attention: Attention, kind: str, keys: int, key_dim: int, value_dim: int) -> None:
    """Both matrices cost keys^2, and the state is walked token by token."""
    if keys > MOST_TOKENS:
        raise ValueError(f"this screen compares up to {MOST_TOKENS:,} tokens, and the text has {keys:,}")
    features = attention.feature_dim(key_dim) if isinstance(attention, FeatureMap) else 0
    if features * value_dim * keys > MOST_WORK:
        raise ValueError(
            f"the state of {kind} has {features:,} x {value_dim} numbers with keys this wide ({key_dim}); "
            f"walking {keys} tokens through it takes too long here: choose a lower order or a shorter text"
        )


def _scaled(kind: str) -> Attention:
    """The kind with scale 1, as the problem has it."""
    attention = parse(kind)
    attention.scale = 1.0  # type: ignore[assignment]
    return attention
