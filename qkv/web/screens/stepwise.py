"""Screen 2, one token step by step: all that one head computes for one query."""

from collections.abc import Mapping
from typing import Any

import torch

from qkv.attention import Taylor
from qkv.explain import token_steps
from qkv.web.params import whole_of
from qkv.web.view_model import ModelScene
from qkv.web.wire import Answer


def steps(scene: ModelScene, asked: Mapping[str, Any]) -> Answer:
    """The numbers of every step, and how far they end from what the model itself computed."""
    place = whole_of(asked, "place", 0, 0, len(scene.places) - 1)
    head = whole_of(asked, "head", 0, 0, scene.places[place].heads - 1)
    call = scene.looks[place].head(head)
    query = whole_of(asked, "row", 0, 0, call.q.shape[2] - 1)
    found = token_steps(call, query)
    defined = call.weights()[0, 0, query]
    seen, dims = int((~found.hidden).sum()), found.products.shape[1]
    record = {
        "kind": call.attention.kind,
        "order": call.attention.order if isinstance(call.attention, Taylor) else None,
        "averages": scene.places[place].averages,
        "scale": found.scale,
        "largest": found.largest,
        "total": found.total,
        "biased": bool(found.bias.any()),
        "faded": bool((found.fade != 1).any()),
        "positions": scene.looks[place].site.positions,
        "multiplications": {
            "products": seen * dims,
            "scale": seen,
            "weights": seen,
            "sum": seen * found.values.shape[1],
        },
        "output_error": float((found.output - call.output[0, 0, query]).abs().max()),
        "weights_error": float((found.weights - defined).abs().max()),
    }
    names = ("asking", "answering", "products", "sums", "scores", "bias", "fade", "raw", "weights", "values", "output")
    tensors = {name: getattr(found, name) for name in names}
    return Answer(record, {**tensors, "hidden": found.hidden.to(torch.uint8)})
