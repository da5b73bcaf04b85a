"""Sizes of a call of the delta rule's kernels, and how they are launched for them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs

from qkv.attention.triton.kernels.delta_common import CHUNK_TOKENS, GATE_ROWS, DeltaTiles
from qkv.attention.triton.launch import with_contiguous_rows
from qkv.attention.triton.launch_cache import Constants
from qkv.attention.triton.plan import MIN_TILE, ceil_div, next_power_of_two


@dataclass(frozen=True)
class DeltaConfig:
    """Launch configuration of one pass."""

    block_v: int
    """Value columns per tile, at most."""
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaConfigs:
    """Launch configurations of all passes."""

    pairs: DeltaConfig
    inverse: DeltaConfig
    walk: DeltaConfig
    walk_back: DeltaConfig
    grad: DeltaConfig


CONFIGS: dict[tuple[bool, int], DeltaConfigs] = {
    (False, 64): DeltaConfigs(
        pairs=DeltaConfig(0, 4, 1, 128),
        inverse=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(64, 4, 2),
        walk_back=DeltaConfig(64, 4, 4),
        grad=DeltaConfig(64, 4, 1),
    ),
    (False, 128): DeltaConfigs(
        pairs=DeltaConfig(0, 4, 1, 128),
        inverse=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(64, 4, 2),
        walk_back=DeltaConfig(128, 8, 3),
        grad=DeltaConfig(128, 4, 1),
    ),
    (False, 256): DeltaConfigs(
        pairs=DeltaConfig(0, 4, 1, 128),
        inverse=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(64, 4, 2),
        walk_back=DeltaConfig(64, 4, 2),
        grad=DeltaConfig(64, 4, 1),
    ),
    (True, 64): DeltaConfigs(
        pairs=DeltaConfig(0, 4, 1),
        inverse=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(32, 4, 1),
        walk_back=DeltaConfig(32, 4, 1),
        grad=DeltaConfig(32, 8, 1),
    ),
    (True, 128): DeltaConfigs(
        pairs=DeltaConfig(0, 8, 1),
        inverse=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(16, 4, 1),
        walk_back=DeltaConfig(16, 4, 1),
        grad=DeltaConfig(32, 8, 1),
    ),
}
CONFIGS[True, 256] = CONFIGS[True, 128]
"""(float32 operands, size) -> configurations: the largest dim is up to 64 or 128, or 256 for what needs more room."""
JOIN_CONFIG = DeltaConfig(16, 4, 1)
MIN_ROW_BYTES = 128
"""Least bytes of a row of keys or values.

ptxas 12.8 computes some addresses of operands in shared memory from the wrong registers: products read other memory.
It did so in some passes with rows of 64 bytes or fewer. Gradients in float32 have tiles of 128 bytes for that reason.
Longer rows are no guarantee: `delta_walk` in float32 with 16 columns and 8 warps was wrong as well.
"""


MIN_SEGMENTED_CHUNKS = 512
"""Fewer chunks are one segment."""
MAX_SEGMENTED_HEADS = 8
MAX_SEGMENTS = 32
SEGMENT_UNIT = 32
"""Chunks per segment are a multiple, so that Triton compiles one form."""


def padded_dim(dim: int, dtype: torch.dtype) -> int:
    """Return columns of keys or values, padded."""
    return max(MIN_ROW_BYTES // dtype.itemsize, next_power_of_two(dim))


class DeltaOperands(NamedTuple):
    """Inputs of the delta rule: q (batch, heads * group, time, key_dim), k and v with heads or fewer."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    """(batch, heads, time)"""
    beta: Tensor | None
    starts: Tensor | None
    """(batch, time)"""

    def contiguous_rows(self) -> "DeltaOperands":
        """Return operands that the kernels can read."""
        starts = None if self.starts is None else self.starts.contiguous()
        q, k, v = (with_contiguous_rows(x) for x in self[:3])
        return self._replace(q=q, k=k, v=v, starts=starts)


@dataclass(frozen=True)
class DeltaPlan:
    """Sizes of one call."""

    batch: int
    heads: int
    """States per batch element."""
    group: int
    key_heads: int
    length: int
    key_dim: int
    value_dim: int
    wide: bool
    """Whether operands of dot products are float32; float16 is, too."""
    has_decay: bool
    has_beta: bool
    has_starts: bool

    @property
    def rows(self) -> int:
        """States."""
        return self.batch * self.heads

    @property
    def chunks(self) -> int:
        """Chunks per sequence."""
        return ceil_div(self.length, CHUNK_TOKENS)

    @property
    def block_k(self) -> int:
        """`key_dim`, padded."""
        return padded_dim(self.key_dim, self.dot_dtype)

    @property
    def padded_v(self) -> int:
        """`value_dim`, padded."""
        return padded_dim(self.value_dim, self.dot_dtype)

    @property
    def dot_dtype(self) -> torch.dtype:
        """Type of the operands of dot products."""
        return torch.float32 if self.wide else torch.bfloat16

    @property
    def sizes(self) -> tuple[int, ...]:
        """The `DeltaSizes`."""
        return self.length, self.chunks, self.rows, self.heads, self.key_heads, self.segment_chunks

    @property
    def configs(self) -> DeltaConfigs:
        """Launch configurations."""
        largest = max(self.block_k, self.padded_v)
        size = 64 if largest <= 64 else 128 if largest <= 128 and self.group == 1 else 256
        return CONFIGS[self.wide, size]

    @property
    def segments(self) -> int:
        """Parts of a sequence that are walked in parallel: more than one if it is long and has few heads.

        That takes about three times the work. It does not depend on the batch, so that a row has the same bits in any.
        """
        return ceil_div(self.chunks, self.segment_chunks)

    @property
    def segment_chunks(self) -> int:
        """Chunks per segment."""
        few = self.heads <= MAX_SEGMENTED_HEADS and self.chunks >= MIN_SEGMENTED_CHUNKS
        return ceil_div(self.chunks, SEGMENT_UNIT * (MAX_SEGMENTS if few else 1)) * SEGMENT_UNIT

    def matrix_shape(self, group: int = 1) -> tuple[int, ...]:
        """Return the shape of one [64, 64] matrix per chunk."""
        return self.rows * group, self.chunks, CHUNK_TOKENS, CHUNK_TOKENS

    @property
    def states_shape(self) -> tuple[int, ...]:
        """Shape of one state per chunk."""
        return self.rows, self.chunks, self.padded_v, self.block_k

    def saved_shapes(self, needs_backward: bool = True) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return shapes and types of gates, M, states, U, factors and P, which only the backward reads."""
        tokens = self.chunks * CHUNK_TOKENS
        shapes = (
            ((self.rows, self.chunks, GATE_ROWS, CHUNK_TOKENS), torch.float32),
            (self.matrix_shape(), self.dot_dtype),
            (self.states_shape, self.dot_dtype),
            ((self.rows, tokens, self.padded_v), self.dot_dtype),
            ((self.rows * self.group, self.chunks, CHUNK_TOKENS, 4), torch.float32),
            (self.matrix_shape(self.group), self.dot_dtype),
        )
        return shapes if needs_backward else tuple(((0,), dtype) for _, dtype in shapes)

    def forward_multiplications(self) -> dict[str, int]:
        """Return the multiplications of one forward on tensor cores, with padding."""
        tokens, size = self.rows * self.chunks * CHUNK_TOKENS, self.block_k * self.padded_v
        segments = {}
        if self.segments > 1:
            transitions = tokens * (2 * self.block_k + CHUNK_TOKENS) * padded_dim(self.key_dim, self.dot_dtype)
            joins = self.rows * self.segments * self.block_k * size
            segments = {"segments": tokens * (2 * size + CHUNK_TOKENS * self.padded_v) + transitions + joins}
        return segments | {
            "key pairs": tokens * CHUNK_TOKENS * self.block_k,
            "inverse": tokens * 16 * MIN_TILE**2 // 4,
            "predict": tokens * size,
            "errors": tokens * CHUNK_TOKENS * self.padded_v,
            "write": tokens * size,
            "lengths": tokens * self.group * CHUNK_TOKENS * self.block_k,
            "scores": tokens * self.group * CHUNK_TOKENS * self.block_k,
            "read": tokens * self.group * size,
            "values": tokens * self.group * CHUNK_TOKENS * self.padded_v,
        }

    def backward_multiplications(self) -> dict[str, int]:
        """Return the multiplications of one backward."""
        tokens, size = self.rows * self.chunks * CHUNK_TOKENS, self.block_k * self.padded_v
        pairs = tokens * CHUNK_TOKENS
        return {
            "states": tokens * size * (2 + self.group),
            "errors": pairs * self.padded_v * (1 + self.group),
            "products": pairs * self.padded_v * (1 + self.group),
            "inputs": pairs * self.block_k * (3 + 2 * self.group),
            "read": tokens * size * (2 + self.group),
        }


def plan_of_operands(x: DeltaOperands, heads: int) -> DeltaPlan:
    """Return the plan of a call with this many states per batch element."""
    batch, query_heads, length, key_dim = x.q.shape
    flags = x.decay is not None, x.beta is not None, x.starts is not None
    sizes = batch, heads, query_heads // heads, x.k.shape[1], length, key_dim, x.v.shape[3]
    return DeltaPlan(*sizes, x.q.dtype != torch.bfloat16, *flags)


@lru_cache(maxsize=1024)
def _constants(plan: DeltaPlan, config: DeltaConfig, has_state: bool) -> Constants:
    block_k = plan.block_k
    tiles = DeltaTiles(
        KEY_DIM=plan.key_dim,
        BLOCK_K=block_k,
        VALUE_DIM=plan.value_dim,
        PADDED_V=plan.padded_v,
        BLOCK_V=min(config.block_v, plan.padded_v),
        GROUP=plan.group,
        HAS_DECAY=plan.has_decay,
        HAS_BETA=plan.has_beta,
        HAS_STARTS=plan.has_starts,
        HAS_STATE=has_state,
        DTYPE=tl.float32 if plan.wide else tl.bfloat16,
        PRECISION="tf32x3",
        SOLVE_PRECISION="tf32x3" if plan.wide or knobs.runtime.interpret else "bf16x3",  # not known to the interpreter
    )
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "maxnreg": config.max_registers}
    return Constants({"TILES": tiles}, options)


def constants_of(plan: DeltaPlan, config: DeltaConfig, *, has_state: bool = False) -> Constants:
    """Return constants that do not depend on batch and length, so that kernels are compiled once."""
    return _constants(replace(plan, batch=0, heads=0, key_heads=0, length=0), config, has_state)


def value_tiles(plan: DeltaPlan, config: DeltaConfig) -> int:
    """Return the tiles of value columns."""
    return plan.padded_v // min(config.block_v, plan.padded_v)
