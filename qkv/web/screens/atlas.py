"""Screen 1, the attention atlas: thumbnails of all heads, and one head in full."""

from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn import functional

from qkv.explain import summarize
from qkv.web.backend import Backend
from qkv.web.params import Params, get_int
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.view_model import ViewModel
from qkv.web.wire import Response

THUMBNAIL_SIZE = 24
"""Largest number of rows and of columns of a thumbnail."""
MIN_ROWS = 32
"""Matrices with fewer rows are colored by their largest weight."""
MEAN_HEAD = -1
"""Head index of the mean over heads."""


class Atlas(Screen):
    """All heads as thumbnails, one head as a map, as arcs or as text."""

    name = "atlas"
    integers = ("site", "head", "row", "column", "zoom", "top", "row_scale")
    essential = True

    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return `candidates`, `thumbnails` and `head`."""
        return {
            "candidates": lambda params: Response({"places": [asdict(one) for one in backend.candidates(params)]}),
            "thumbnails": lambda params: thumbnails(backend.view_model(params)),
            "head": lambda params: head_map(backend.view_model(params), params),
        }

    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield what the model says, the thumbnails, every head and every mean."""
        yield Query("candidates", {})
        yield Query("thumbnails", {})
        for index, site in enumerate(backend.view_model(params).sites):
            for head in range(MEAN_HEAD, site.heads):
                yield Query("head", {"site": index, "head": head})


def thumbnails(view_model: ViewModel) -> Response:
    """Return every head, max-pooled to a small image of 256 shades, and its summary."""
    images: list[Tensor] = []
    summaries: list[list[dict[str, float]]] = []
    shapes: list[list[int]] = []
    for index, site in enumerate(view_model.sites):
        heads = []
        for head in range(site.heads):
            weights = view_model.weights(index, head).float()
            small = pool(weights, THUMBNAIL_SIZE)
            images.append(shades(small, color_range(weights)).flatten())
            heads.append(asdict(summarize(weights)))
            if not head:
                shapes.append(list(small.shape))
        summaries.append(heads)
    joined = torch.cat(images) if images else torch.zeros(0, dtype=torch.uint8)
    return Response({"shapes": shapes, "summaries": summaries}, {"thumbnails": joined})


def head_map(view_model: ViewModel, params: Params) -> Response:
    """Return one head in full and how it was verified; head -1 is the mean over heads."""
    site = get_int(params, "site", 0, 0, len(view_model.sites) - 1)
    head = get_int(params, "head", 0, MEAN_HEAD, view_model.sites[site].heads - 1)
    if head == MEAN_HEAD:
        return Response({"site": site, "head": head, "fast_path_error": None}, {"weights": view_model.mean(site)})
    weights = view_model.weights(site, head)
    check = view_model.check(site, head, weights)
    record = {"site": site, "head": head, "fast_path_error": check.fast_path_error, "scale": check.scale}
    return Response(record, {"weights": weights, **check.vectors, **view_model.gates(site, head)})


def pool(weights: Tensor, max_size: int) -> Tensor:
    """Return the largest magnitude of each block of cells, in at most `max_size` rows and columns."""
    weights = weights.abs()
    rows, columns = (-(-size // max_size) for size in weights.shape)
    if rows == columns == 1:
        return weights
    return functional.max_pool2d(weights[None], (rows, columns), ceil_mode=True)[0]


def color_range(weights: Tensor) -> float:
    """Return the weight of the darkest color: the largest, or for a long input the median of the rows' largest.

    `colorRange` of static/heat.js is the same: the first row of a causal head has a weight of 1, beside which the
    others would be blank.
    """
    rows = weights.abs().nan_to_num(0).amax(-1)
    largest, middle = float(rows.max()), float(rows.sort().values[len(rows) // 2])
    return middle if len(rows) >= MIN_ROWS and 0 < 2 * middle < largest else largest


def shades(weights: Tensor, largest: float) -> Tensor:
    """Return magnitudes scaled to 0..255 by `largest`; larger ones are 255."""
    return (weights / max(largest, 1e-30) * 255).nan_to_num(0).clamp(max=255).round().to(torch.uint8)


screen = Atlas()
