"""Prove a mechanism: every identity of the contract, with its measured error.

    for result in check(MyAttention()):
        print(result.identity, result.error, result.bound, result.ok)

It takes any mechanism, registered or not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from qkv.attention.base import Attention
from qkv.attention.contract import identities
from qkv.attention.contract.cases import Case


@dataclass(frozen=True)
class Result:
    """One identity, tried on several cases: the worst error and what it may be."""

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
    """What must hold, on which cases, and how far off it may be."""

    name: str
    error: Callable[[Attention, Case], float]
    cases: Callable[[list[Case]], list[Case]]
    """Those of a grid on which it is tried."""
    bound: float | None = None
    """The largest error; None: the precision of the mechanism."""


def _all(grid: list[Case]) -> list[Case]:
    return grid


def _ordered(grid: list[Case]) -> list[Case]:
    return [case for case in grid if case.causal]


def _unordered(grid: list[Case]) -> list[Case]:
    return [case for case in grid if not case.causal]


def _edges(grid: list[Case]) -> list[Case]:
    lengths: dict[bool, tuple[dict[str, Any], ...]] = {
        True: ({"queries": 0, "keys": 0}, {"queries": 1, "keys": 1}),
        False: ({"queries": 0}, {"keys": 0}, {"queries": 1}, {"keys": 1}),
    }
    return [replace(case, **edge) for case in grid for edge in ({"batch": 0}, {"batch": 1}, *lengths[case.causal])]


def _extreme(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=dtype, score=1e4) for case in grid for dtype in (torch.float32, torch.float16)]


def _fading(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=torch.float32) for case in grid if case.extra == "decay"]


def _half(grid: list[Case]) -> list[Case]:
    return [replace(case, dtype=torch.float16) for case in grid]


def _long(grid: list[Case]) -> list[Case]:
    sizes: dict[str, Any] = {"batch": 1, "queries": 521, "keys": 521, "heads": 2, "key_heads": 2, "score": 3.0}
    return [replace(case, **sizes, dtype=torch.float32) for case in grid if not case.masked]


def _rounding(mechanism: Attention, case: Case) -> float:
    return identities.rounding(mechanism, case, seeds=16)


IDENTITIES = (
    Identity("forward = definition, and gradients", identities.all_forms, _all),
    Identity("step by step = definition, and gradients", identities.token_by_token, _ordered),
    Identity("split with carried state, and gradients", identities.split_anywhere, _ordered),
    Identity("lengths 0 and 1, batch 0 and 1", identities.all_forms, _edges),
    Identity("grouped heads = repeated heads", identities.grouped_heads, _all),
    Identity("hidden keys = absent keys", identities.dropped_keys, _unordered),
    Identity("reordered state", identities.reordered_state, _ordered),
    Identity("no look ahead (exact)", identities.looks_ahead, _ordered, 0.0),
    Identity("hidden NaN or inf: no influence (exact)", identities.hidden_influence, _all, 0.0),
    Identity("sees nothing: zeros, finite gradients", identities.sees_nothing, _all, 0.0),
    Identity("faded to nothing: finite, and gradients", identities.faded, _fading, 0.0),
    Identity("scores of 1e4 stay finite", identities.not_finite, _extreme, 0.0),
    Identity("float32 rounding / the definition's", _rounding, _long, 2.0),
    Identity("float16 rounds once", identities.rounded_once, _half, 2.0**-10),
    Identity("counted multiplications = cost", identities.miscounted, _all, 0.0),
    Identity("bytes of the state = cost", identities.state_bytes, _ordered, 0.0),
)


def check(mechanism: Attention, key_dim: int = 5) -> list[Result]:
    """All identities for this mechanism; `key_dim` is what it was built for, if that matters to it.

    An identity without a case (a window cannot be unordered) is left out.
    """
    kind = getattr(mechanism, "kind", type(mechanism).__name__)
    grid = list(_grid(mechanism, key_dim))
    results = []
    for identity in IDENTITIES:
        errors = [identity.error(identities.cast(mechanism, case.dtype), case) for case in identity.cases(grid)]
        bound = mechanism.precision if identity.bound is None else identity.bound
        results += [Result(kind, identity.name, identities.worst(errors), bound)] if errors else []
    return results


def _grid(mechanism: Attention, key_dim: int) -> Iterator[Case]:
    """Causal and not, masked and not, with each extra the mechanism accepts; a window has to be causal."""
    unordered = () if getattr(mechanism, "window", None) else (False,)
    for causal in (True, *unordered):
        for masked in (False, True):
            for extra in (None, *sorted({"bias", "decay"} & mechanism.accepts)):
                if causal or extra != "decay":
                    queries = 13 if causal else 11
                    yield Case(key_dim=key_dim, queries=queries, causal=causal, masked=masked, extra=extra)
