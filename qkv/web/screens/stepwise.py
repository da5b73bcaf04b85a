"""Screen 2, step by step: everything that one head computes for one query."""

from collections.abc import Iterator

import torch

from qkv.attention import Attention
from qkv.explain import TokenTrace, trace_token
from qkv.web.backend import Backend
from qkv.web.params import Params, get_int
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.view_model import ViewModel, law_record
from qkv.web.wire import Response

TENSORS = (
    "query",
    "keys",
    "products",
    "sums",
    "scores",
    "bias",
    "decay",
    "unnormalized",
    "weights",
    "values",
    "output",
)
"""Fields of `TokenTrace` that are sent as they are."""


class Stepwise(Screen):
    """One query through one head, from its vectors to its output."""

    name = "stepwise"
    integers = ("site", "head", "row", "column", "step", "score_factor")

    def is_available(self, backend: Backend) -> bool:
        """Return whether there is a model."""
        return backend.model is not None

    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return `token_trace`."""
        return {"token_trace": lambda params: token_trace(backend.view_model(params), params)}

    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield every query of every head."""
        view_model = backend.view_model(params)
        for index, site in enumerate(view_model.sites):
            for head in range(site.heads):
                for row in range(len(view_model.tokens[site.rows])):
                    yield Query("token_trace", {"site": index, "head": head, "row": row})


def token_trace(view_model: ViewModel, params: Params) -> Response:
    """Return the values of every step, and the error of the last against the model's output."""
    site = get_int(params, "site", 0, 0, len(view_model.sites) - 1)
    head = get_int(params, "head", 0, 0, view_model.sites[site].heads - 1)
    recorded = view_model.records[site]
    call = recorded.head(head)
    query = get_int(params, "row", 0, 0, call.q.shape[2] - 1)
    trace = trace_token(call, query)
    definition = call.weights()[0, 0, query]
    record = {
        "kind": call.attention.kind,
        "law": law_record(call.attention),
        "stages": _stages(call.attention, trace),
        "normalizes": call.attention.normalizes,
        "dot_product": call.attention.score_scale(call.q.shape[-1]) is not None,
        "scale": trace.scale,
        "max_score": trace.max_score,
        "normalizer": trace.normalizer,
        "has_bias": bool(trace.bias.any()),
        "has_decay": bool((trace.decay != 1).any()),
        "positions": recorded.site.positions,
        "rotates": recorded.site.rotates,
        "multiplications": _multiplications(trace),
        "output_error": float((trace.output - call.output[0, 0, query]).abs().max()),
        "weights_error": float((trace.weights - definition).abs().max()),
    }
    tensors = {name: getattr(trace, name) for name in TENSORS}
    return Response(record, {**tensors, "masked": trace.masked.to(torch.uint8)})


def _stages(attention: Attention, trace: TokenTrace) -> list[dict[str, str]]:
    """Return id and name of each step; a kind without score terms has only its weights to show."""
    vectors = {"id": "vectors", "name": "query and keys"}
    scoring = [
        {"id": "products", "name": "products"},
        {"id": "scores", "name": "scores"},
        {"id": "mask", "name": "mask and positions"},
        {"id": "law", "name": attention.law.name},
    ]
    rest = [{"id": name, "name": name} for name in ("weights", "values", "output")]
    return [vectors, *(scoring if trace.has_terms else []), *rest]


def _multiplications(trace: TokenTrace) -> dict[str, int]:
    """Return the multiplications of each step, over the visible keys."""
    visible, dims = int((~trace.masked).sum()), trace.products.shape[1]
    return {
        "products": visible * dims,
        "scale": visible,
        "weights": visible,
        "sum": visible * trace.values.shape[1],
    }


screen = Stepwise()
