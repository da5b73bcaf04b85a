"""The interface of a mechanism to the Triton kernels: its class attribute `triton`, a `KernelKind`.

Nothing here imports triton, so that a mechanism can declare its kernel on a machine without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.attention.triton.configs import ELU_CONFIGS, LINEAR_CONFIGS, TAYLOR_CONFIGS, SizeTable

if TYPE_CHECKING:
    from qkv.attention.triton.constants import KernelFunctions


@dataclass(frozen=True, kw_only=True)
class FeatureExpansion:
    """Tables for a kind whose features are products of two elements of the mapped input."""

    feature_dim: Callable[[int], int]
    """key_dim -> features."""
    pure_features: Callable[[int], int]
    """key_dim -> leading features that need no bias."""
    tables: Callable[[int, int, int, torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor]]
    """(key_dim, block_k, padded_features, dtype, device) -> first_picks, second_picks, biases."""
    weights: Callable[[int, float, torch.device], Tensor]
    """(key_dim, scale, device) -> factor of each feature; the kernels compute features without it."""
    state_weights: Callable[[int, float, int, torch.device], Tensor]
    """(key_dim, scale, padded_features, device) -> product of a query's and a key's factor per feature."""
    order: Callable[[int, torch.device], Tensor]
    """(key_dim, device) -> index of each feature in `FeatureMap.features`."""
    decode_tables: Callable[[int, float, torch.device], tuple[Tensor, Tensor, Tensor]]
    """(key_dim, scale, device) -> tables of `KernelFunctions.token_features`."""


def _supported(_: Any) -> str | None:
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelKind:
    """The functions and limits by which the kernels compute one kind of attention."""

    name: str
    """Unique name, passed to the torch operators, which take strings and not objects."""
    load_functions: Callable[[], "KernelFunctions"]
    """Imports triton, and returns the jitted functions."""
    load_expansion: Callable[[], FeatureExpansion] | None = None
    """Imports triton, and returns the tables of features; None: features are the mapped inputs."""
    normalizes: bool
    """Whether weights are divided by their sum."""
    scales_scores: bool
    """Whether the scale multiplies q.k; otherwise it is inside `map_input`."""
    max_key_dim: int
    segment: int
    """Tokens between two prefix states, if the mechanism's `chunk` is None and key_dim is at most 16."""
    wide_segment: int
    """The same for wider keys: their state is larger, and stored less often."""
    configs: SizeTable
    """Measured launch configurations."""
    unsupported_reason: Callable[[Any], str | None] = _supported
    """(mechanism) -> why the kernels cannot compute it, or None."""

    def __post_init__(self) -> None:
        """Make the kind known to the operators."""
        if self.name in _KINDS:
            raise ValueError(f"name={self.name!r} of a KernelKind is taken; choose another")
        _KINDS[self.name] = self

    @cached_property
    def functions(self) -> "KernelFunctions":
        """The jitted functions."""
        return self.load_functions()

    @cached_property
    def expansion(self) -> FeatureExpansion | None:
        """The tables of features, if it has some."""
        return None if self.load_expansion is None else self.load_expansion()


_KINDS: dict[str, KernelKind] = {}


def kernel_kind(name: str) -> KernelKind:
    """Return the kind of this name."""
    return _KINDS[name]


def _taylor_functions() -> "KernelFunctions":
    from qkv.attention.triton.kernels.taylor import TAYLOR as FUNCTIONS

    return FUNCTIONS


def _taylor_expansion() -> FeatureExpansion:
    from qkv.attention.triton.kernels.taylor import EXPANSION

    return EXPANSION


def _linear_functions() -> "KernelFunctions":
    from qkv.attention.triton.kernels.linear import LINEAR as FUNCTIONS

    return FUNCTIONS


def _elu_functions() -> "KernelFunctions":
    from qkv.attention.triton.kernels.linear import ELU as FUNCTIONS

    return FUNCTIONS


def _order_two_only(mechanism: Any) -> str | None:
    return None if mechanism.order == 2 else f"its kernels are of order 2, not {mechanism.order}"


TAYLOR = KernelKind(
    name="taylor",
    load_functions=_taylor_functions,
    load_expansion=_taylor_expansion,
    normalizes=True,
    scales_scores=True,
    max_key_dim=64,
    segment=256,
    wide_segment=512,
    configs=TAYLOR_CONFIGS,
    unsupported_reason=_order_two_only,
)
LINEAR = KernelKind(
    name="linear",
    load_functions=_linear_functions,
    normalizes=False,
    scales_scores=True,
    max_key_dim=128,
    segment=128,
    wide_segment=128,
    configs=LINEAR_CONFIGS,
)
ELU = KernelKind(
    name="elu",
    load_functions=_elu_functions,
    normalizes=True,
    scales_scores=False,
    max_key_dim=128,
    segment=128,
    wide_segment=128,
    configs=ELU_CONFIGS,
)
