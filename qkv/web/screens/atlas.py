"""Screen 1, the attention atlas: every head small, one head whole."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qkv.explain import summarize
from qkv.web.params import whole_of
from qkv.web.view_model import Scene
from qkv.web.wire import Answer

THUMBNAIL = 24
"""Cells of a small picture, each way."""
MEAN = -1
"""The number that asks for the mean over heads."""


def overview(scene: Scene) -> Answer:
    """Tokens and places: all that a page needs to draw its frame."""
    return Answer(
        {
            "tokens": scene.tokens,
            "places": [asdict(place) for place in scene.places],
            "notes": scene.notes,
            "code": scene.code,
        }
    )


def thumbnails(scene: Scene) -> Answer:
    """Every head, pooled by its largest weights to a small picture of 256 shades, and its summary."""
    pictures: list[Tensor] = []
    summaries: list[list[dict[str, float]]] = []
    shapes: list[list[int]] = []
    for place, what in enumerate(scene.places):
        mine = []
        for head in range(what.heads):
            weights = scene.weights(place, head).float()
            small = pool(weights, THUMBNAIL)
            pictures.append(shades(small).flatten())
            mine.append(asdict(summarize(weights)))
            if not head:
                shapes.append(list(small.shape))
        summaries.append(mine)
    joined = torch.cat(pictures) if pictures else torch.zeros(0, dtype=torch.uint8)
    return Answer({"shapes": shapes, "summaries": summaries}, {"thumbnails": joined})


def head_map(scene: Scene, asked: Mapping[str, Any]) -> Answer:
    """One head in full, with what was proven about it; head -1 is the mean over heads."""
    place = whole_of(asked, "place", 0, 0, len(scene.places) - 1)
    head = whole_of(asked, "head", 0, MEAN, scene.places[place].heads - 1)
    if head == MEAN:
        return Answer({"place": place, "head": head, "against_fast": None}, {"weights": scene.mean(place)})
    weights = scene.weights(place, head)
    proof = scene.prove(place, head, weights)
    record = {"place": place, "head": head, "against_fast": proof.against_fast, "scale": proof.scale}
    return Answer(record, {"weights": weights, **proof.vectors})


def pool(weights: Tensor, most: int) -> Tensor:
    """The largest of each block of cells, so that at most `most` rows and columns are left."""
    rows, columns = (-(-size // most) for size in weights.shape)
    if rows == columns == 1:
        return weights
    return functional.max_pool2d(weights[None], (rows, columns), ceil_mode=True)[0]


def shades(weights: Tensor) -> Tensor:
    """0 to 255, from 0 to the largest in size; the sign is lost."""
    largest = weights.abs().max().clamp(min=1e-30)
    return (weights.abs() / largest * 255).nan_to_num(0).round().to(torch.uint8)
