"""Screen 3, softmax versus a linear kind: both matrices of one head, their difference, and the copying problem."""

from collections.abc import Iterator
from dataclasses import asdict

from qkv.attention import Attention, FeatureMap, Softmax, build, kinds, parse
from qkv.explain import compare_kinds, copying
from qkv.web.backend import Backend
from qkv.web.params import Params, get_choice, get_int
from qkv.web.screens.base import Handler, Query, Screen
from qkv.web.view_model import ViewModel, law_record
from qkv.web.wire import Response

REFERENCE = Softmax().kind
"""Kind that all others are compared with."""
BETAS = [quarter / 4 for quarter in range(1, 17)]
MAX_TOKENS = 1024
MAX_STATE_UPDATES = 300_000_000
"""Elements of the state times tokens: a few seconds."""


class Versus(Screen):
    """Softmax versus another kind on the same queries and keys."""

    name = "versus"
    integers = ("site", "head", "row", "column", "zoom", "quarters")

    def is_available(self, backend: Backend) -> bool:
        """Return whether there is a model."""
        return backend.model is not None

    def handlers(self, backend: Backend) -> dict[str, Handler]:
        """Return `kinds`, `versus` and `copying`."""
        return {
            "kinds": lambda params: Response({"kinds": comparable_kinds(), "reference": REFERENCE}),
            "versus": lambda params: compare_head(backend.view_model(params), params),
            "copying": copying_problem,
        }

    def saved_queries(self, backend: Backend, params: Params) -> Iterator[Query]:
        """Yield every head versus each kind, without the variants, whose states may be large."""
        specs = comparable_kinds(variants=False)
        yield Query("kinds", {})
        for kind in (REFERENCE, *specs):
            yield Query("copying", {"kind": kind})
        for index, site in enumerate(backend.view_model(params).sites):
            for head in range(site.heads):
                for kind in specs:
                    yield Query("versus", {"site": index, "head": head, "kind": kind})


def comparable_kinds(*, variants: bool = True) -> list[str]:
    """Return the specs of kinds that serve every head and have no parameters; those that approximate exp come first."""
    specs: list[str] = []
    for name in kinds:
        try:
            attention = build(name)
        except (TypeError, ValueError):
            continue  # needs arguments: a kind with parameters
        if not isinstance(attention, Softmax) and not attention.causal_only:
            specs += [name, *(attention.variants if variants else ())]
    return sorted(specs, key=lambda spec: parse(spec).law.taylor_order is None)


def compare_head(view_model: ViewModel, params: Params) -> Response:
    """Return one head of the model through softmax and through another kind."""
    choices = comparable_kinds()
    kind = get_choice(params, "kind", choices[0], choices)
    site = get_int(params, "site", 0, 0, len(view_model.sites) - 1)
    head = get_int(params, "head", 0, 0, view_model.sites[site].heads - 1)
    call = view_model.records[site].head(head)
    attention = parse(kind)
    _check_size(attention, kind, call.k.shape[2], call.k.shape[3], call.v.shape[3])
    comparison = compare_kinds(call, attention)
    record = {
        "kind": kind,
        "reference": REFERENCE,
        "model_kind": call.attention.kind,
        "dot_product": call.attention.score_scale(call.q.shape[-1]) is not None,
        "model_score": call.attention.law.score,
        "law": law_record(attention),
        "normalizes": attention.normalizes,
        "causal": view_model.sites[site].causal,
        "left_out": [name for name in ("bias", "decay", "beta") if call.options.get(name) is not None],
        "feature_dim": comparison.feature_dim,
        "value_dim": call.v.shape[-1],
        "key_dim": call.k.shape[-1],
        "difference": float((comparison.implied - comparison.exact).abs().max()),
        "recurrence_error": comparison.recurrence_error,
        "order_errors": [asdict(error) for error in comparison.order_errors],
    }
    tensors = {
        "exact": comparison.exact,
        "implied": comparison.implied,
        "scores": comparison.scores,
        "state_norms": comparison.state_norms,
    }
    return Response(record, tensors)


def copying_problem(params: Params) -> Response:
    """Return the results of the copying problem for every beta."""
    kind = get_choice(params, "kind", REFERENCE, [REFERENCE, *comparable_kinds()])
    results = [asdict(copying(beta, _with_unit_scale(kind))) for beta in BETAS]
    return Response({"kind": kind, "betas": BETAS, "results": results})


def _check_size(attention: Attention, kind: str, keys: int, key_dim: int, value_dim: int) -> None:
    """Raise ValueError if the matrices (keys^2) or the recurrence, token by token, would take too long."""
    if keys > MAX_TOKENS:
        raise ValueError(f"the text has {keys:,} tokens, but this screen compares at most {MAX_TOKENS:,}")
    features = attention.feature_dim(key_dim) if isinstance(attention, FeatureMap) else 0
    if features * value_dim * keys > MAX_STATE_UPDATES:
        raise ValueError(
            f"the state of {kind} has {features:,} x {value_dim} elements for key_dim={key_dim}; "
            f"updating it for {keys} tokens takes too long here: choose another kind or a shorter text"
        )


def _with_unit_scale(kind: str) -> Attention:
    """Return the kind with scale 1, as the problem states it."""
    attention = parse(kind)
    attention.scale = 1.0  # type: ignore[assignment]
    return attention


screen = Versus()
