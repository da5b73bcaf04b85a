"""Check a mechanism: every identity of the contract, with its measured error.

    for result in check(MyAttention()):
        print(result.identity, result.error, result.bound, result.ok)

The mechanism need not be registered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from qkv.attention.base import Attention
from qkv.attention.contract import identities
from qkv.attention.contract.cases import GATES, Case


@dataclass(frozen=True)
class Result:
    """Largest error of one identity over several cases, and its bound."""

    kind: str
    identity: str
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the error is within its bound (NaN never is)."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Identity:
    """A property of every mechanism: the cases it is tested on and its largest allowed error."""

    name: str
    error: Callable[[Attention, Case], float]
    cases: Callable[[list[Case]], list[Case]]
    """Function that selects or derives its cases from the grid."""
    bound: float | None = None
    """Largest allowed error; default: the precision of the mechanism."""
    needs: str | None = None
    """What a mechanism must accept, such as "beta"; others skip this identity."""


def _all_cases(grid: list[Case]) -> list[Case]:
    return grid


def _causal_cases(grid: list[Case]) -> list[Case]:
    return [case for case in grid if case.causal]


def _bidirectional_cases(grid: list[Case]) -> list[Case]:
    return [case for case in grid if not case.causal]


def _edge_cases(grid: list[Case]) -> list[Case]:
    lengths: dict[bool, tuple[dict[str, Any], ...]] = {
        True: ({"queries": 0, "keys": 0}, {"queries": 1, "keys": 1}),
        False: ({"queries": 0}, {"keys": 0}, {"queries": 1}, {"keys": 1}),
    }
    return [replace(case, **edge) for case in grid for edge in ({"batch": 0}, {"batch": 1}, *lengths[case.causal])]


def _extreme_cases(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=dtype, max_score=1e4) for case in grid for dtype in (torch.float32, torch.float16)]


def _decay_cases(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=torch.float32) for case in grid if case.modifier == "decay"]


def _gate_cases(grid: list[Case]) -> list[Case]:
    return [case for case in grid if case.modifier in GATES]


def _steep_gate_cases(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=torch.float32, max_rate=50.0) for case in _gate_cases(grid)]


def _document_cases(grid: list[Case]) -> list[Case]:
    return [case for case in grid if case.documents]


def _rewritable_cases(grid: list[Case]) -> list[Case]:
    # a decay by distance counts absent tokens
    return [case for case in grid if case.causal and case.modifier != "decay" and not case.masked]


def _float16_cases(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=torch.float16) for case in grid]


def _long_cases(grid: list[Case]) -> list[Case]:
    sizes: dict[str, Any] = {"batch": 1, "queries": 521, "keys": 521, "heads": 2, "key_heads": 2, "max_score": 3.0}
    return [replace(case, **sizes, dtype=torch.float32) for case in grid if not case.masked and not case.documents]


def _mean_rounding_ratio(mechanism: Attention, case: Case) -> float:
    # a definition with gates is slow
    return identities.rounding_ratio(mechanism, case, seeds=4 if case.modifier in GATES else 16)


IDENTITIES = (
    Identity("forward = definition, and gradients", identities.backend_error, _all_cases),
    Identity("step by step = definition, and gradients", identities.step_error, _causal_cases),
    Identity("two steps = definition, and gradients", identities.split_error, _causal_cases),
    Identity("lengths 0 and 1, batch 0 and 1", identities.backend_error, _edge_cases),
    Identity("grouped heads = repeated heads", identities.grouped_heads_error, _all_cases),
    Identity("masked keys = absent keys", identities.dropped_keys_error, _bidirectional_cases),
    Identity("selected state = selected inputs", identities.reordered_state_error, _causal_cases),
    Identity("joined states = states alone", identities.joined_state_error, _causal_cases),
    Identity("causality (exact)", identities.future_influence, _causal_cases, 0.0),
    Identity("future NaN or inf: no influence (exact)", identities.future_nonfinite_influence, _causal_cases, 0.0),
    Identity("masked NaN or inf: no influence (exact)", identities.hidden_influence, _all_cases, 0.0),
    Identity("no visible key: zeros, finite gradients", identities.empty_row_violations, _all_cases, 0.0),
    Identity("decayed to 0: finite, and gradients", identities.faded_nonfinite, _decay_cases, 0.0),
    Identity("gate of 0 = no gate; constant gate = decay", identities.special_gate_error, _gate_cases),
    Identity("closed gate = start of a document", identities.closed_gate_error, _gate_cases),
    Identity("document in a row = document alone", identities.fresh_start_error, _document_cases),
    Identity("rates of 50: finite, and gradients", identities.gate_nonfinite, _steep_gate_cases, 0.0),
    Identity("beta 0 and rate 0 = absent token", identities.idle_token_error, _rewritable_cases, needs="beta"),
    Identity("orthogonal keys: last value", identities.overwritten_error, _rewritable_cases, needs="beta"),
    Identity("scores of 1e4 stay finite", identities.extreme_nonfinite, _extreme_cases, 0.0),
    Identity("float32 rounding / the definition's", _mean_rounding_ratio, _long_cases, 2.0),
    Identity("float16 rounds once", identities.rounding_error, _float16_cases, 2.0**-10),
    Identity("counted multiplications = cost", identities.multiplication_error, _all_cases, 0.0),
    Identity("bytes of the state = cost", identities.state_bytes_error, _causal_cases, 0.0),
)


def check(mechanism: Attention, key_dim: int = 5) -> list[Result]:
    """Check all identities for this mechanism; `key_dim` must be the one it was built for, if any.

    An identity without a case is skipped (a window has no bidirectional case).
    """
    kind = getattr(mechanism, "kind", type(mechanism).__name__)
    grid = list(_case_grid(mechanism, key_dim))
    results = []
    for identity in IDENTITIES:
        if identity.needs is not None and identity.needs not in mechanism.accepts:
            continue
        errors = [identity.error(identities.cast(mechanism, case.dtype), case) for case in identity.cases(grid)]
        bound = mechanism.precision if identity.bound is None else identity.bound
        if errors:
            results.append(Result(kind, identity.name, identities.largest_error(errors), bound))
    return results


def _case_grid(mechanism: Attention, key_dim: int) -> Iterator[Case]:
    """Yield cases: causal or not, masked or not, with each modifier that the mechanism accepts."""
    bidirectional = () if getattr(mechanism, "window", None) or mechanism.causal_only else (False,)
    gates = [gate for gate in GATES if gate in mechanism.accepts]
    for masked in (False, True):
        for modifier in (None, *sorted({"bias", "decay"} & mechanism.accepts), *gates):
            yield Case(key_dim=key_dim, masked=masked, modifier=modifier, key_head_gate=masked)
    for modifier in gates or (None,):
        yield Case(key_dim=key_dim, modifier=modifier, documents=True)
    for causal in bidirectional:
        for masked in (False, True):
            for modifier in (None, *({"bias"} & mechanism.accepts)):
                yield Case(key_dim=key_dim, queries=11, causal=causal, masked=masked, modifier=modifier)
