"""Compile-time arguments of the kernels, grouped: a kernel takes each record as one `tl.constexpr`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import triton.language as tl
from triton import knobs

JitFunction = Callable[..., Any]


class ConstexprRecord:
    """Base of the records; frozen, since Triton looks kernels up by their values."""

    def __post_init__(self) -> None:
        """Wrap each field in `tl.constexpr`, as Triton wraps an argument; its interpreter needs plain values."""
        if not knobs.runtime.interpret:
            for field in fields(self):  # type: ignore[arg-type]
                object.__setattr__(self, field.name, tl.constexpr(getattr(self, field.name)))

    @property
    def cache_key(self) -> str:
        """Key in Triton's cache on disk; it follows the source of every function in the record."""
        values = [getattr(self, field.name).value for field in fields(self)]  # type: ignore[arg-type]
        return repr([getattr(value, "cache_key", value) for value in values])


@dataclass(frozen=True, kw_only=True)
class KernelFunctions(ConstexprRecord):
    """The jitted functions in which one kind differs from another."""

    map_input: JitFunction
    """Queries or keys as the scores see them."""
    map_grad: JitFunction
    """Gradient through `map_input`."""
    weight: JitFunction
    """Unnormalized weight of a pair by its dot product."""
    slope: JitFunction
    """Derivative of `weight` by the dot product."""
    pair_sums: JitFunction
    """Sums over the columns of weights times their gradients, one sum per thread: (rows, 8)."""
    load_picks: JitFunction
    """Tables that make one tile of features, loaded once per program."""
    features_t: JitFunction
    """One tile of features by these tables, transposed: (features, tokens)."""
    features: JitFunction
    """One tile of features: (tokens, features)."""
    grad_features: JitFunction
    """Gradient of the input, given the gradient of one tile of features."""
    token_features: JitFunction
    """Features of a single token, for decoding."""


@dataclass(frozen=True, kw_only=True)
class TileSizes(ConstexprRecord):
    """Sizes of tensors and tiles; the BLOCK_* are the shapes in the comments of the kernels."""

    KEY_DIM: int
    BLOCK_K: int
    """KEY_DIM, padded to a power of two."""
    VALUE_DIM: int
    BLOCK_V: int
    """Value columns that one program takes."""
    VALUE_BLOCKS: int
    PADDED_FEATURES: int
    """Features per state, in whole tiles."""
    BLOCK_F: int
    """Features per tile."""
    FEATURE_TILES: int
    PURE_TILES: int
    """Leading tiles whose features are products of two elements, without a bias."""
    SEGMENT: int
    """Tokens between two prefix states."""
    BLOCK_A: int
    """Tokens per program, or per step of a program that accumulates a state."""
    BLOCK_B: int
    """Tokens that a block of BLOCK_A attends to at a time."""
    DTYPE: Any
    """Type of the operands of dot products."""
    PRECISION: str
    """How dot products of float32 are computed."""


@dataclass(frozen=True, kw_only=True)
class Flags(ConstexprRecord):
    """Compile-time flags of a pass."""

    NORMALIZE: bool
    """Whether weights are divided by their sum."""
    EXPANDS: bool
    """Whether features are more than the mapped input."""
    REVERSE: bool
    """Whether keys attend to queries, from the last token to the first: the backward."""
    HAS_MASK: bool = False
    HAS_DECAY: bool = False
    HAS_GATE: bool = False
    """Whether each token has a rate of its own."""
    SUM_PAIRS: bool = False
    """Whether the gradient of a gate is summed over pairs, without those of a token with itself."""
    CROSSING: bool = False
    """Whether products of states with their gradients are stored, for the gradient of a gate."""
    SUM_NORMS: bool = False
    """Whether these include the states of normalizers."""
    FORWARD_SPLIT: bool = False
    """Whether the forward read a state before each split."""
    HAS_INV_NORM: bool = False
    """Whether weights are multiplied by 1 / normalizer of the query, in the backward."""
    INTRA: str = "none"
    """Tokens that are attended to one by one: "none", "causal" (those of the segment) or "all"."""
    LOCAL_PREFIX: bool = False
    """Whether each segment reads the state before it in its split."""
    SPLIT_PREFIX: bool = False
    """Whether each segment reads the state before its split."""
