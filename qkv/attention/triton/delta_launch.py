"""Buffers and launches of the kernels of the delta rule; see `kernels/delta_common.py` for the passes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from qkv.attention.triton.kernels import delta_grad, delta_output, delta_prepare, delta_walk
from qkv.attention.triton.kernels.delta_common import CHUNK_TOKENS, GATE_ROWS, DeltaSizes, DeltaStrides, DeltaTiles
from qkv.attention.triton.launch import empty_like_rows, with_contiguous_rows
from qkv.attention.triton.launch_cache import CachedKernel, Constants
from qkv.attention.triton.plan import MIN_TILE, ceil_div, next_power_of_two

PREPARE = CachedKernel(delta_prepare.delta_prepare, delta_prepare.PreparePointers, DeltaStrides, DeltaSizes)
WALK = CachedKernel(delta_walk.delta_walk, delta_walk.WalkPointers, DeltaStrides, DeltaSizes)
OUTPUT = CachedKernel(delta_output.delta_output, delta_output.DeltaOutputPointers, DeltaStrides, DeltaSizes, float)
WALK_BACK = CachedKernel(delta_walk.delta_walk_back, delta_walk.WalkBackPointers, DeltaStrides, DeltaSizes)
GRAD = CachedKernel(delta_grad.delta_grad, delta_grad.DeltaGradPointers, DeltaStrides, DeltaSizes, float)


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

    prepare: DeltaConfig
    walk: DeltaConfig
    output: DeltaConfig
    walk_back: DeltaConfig
    grad: DeltaConfig


CONFIGS: dict[tuple[bool, int], DeltaConfigs] = {
    (False, 64): DeltaConfigs(
        prepare=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(32, 4, 3),
        output=DeltaConfig(64, 4, 1),
        walk_back=DeltaConfig(32, 4, 2),
        grad=DeltaConfig(64, 8, 1),
    ),
    (False, 128): DeltaConfigs(
        prepare=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(64, 4, 2),
        output=DeltaConfig(128, 4, 1),
        walk_back=DeltaConfig(64, 4, 1),
        grad=DeltaConfig(32, 8, 1),
    ),
    (True, 64): DeltaConfigs(
        prepare=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(32, 4, 1),
        output=DeltaConfig(32, 4, 1),
        walk_back=DeltaConfig(32, 4, 1),
        grad=DeltaConfig(32, 8, 1),
    ),
    (True, 128): DeltaConfigs(
        prepare=DeltaConfig(0, 1, 1),
        walk=DeltaConfig(16, 4, 1),
        output=DeltaConfig(32, 8, 1),
        walk_back=DeltaConfig(16, 4, 1),
        grad=DeltaConfig(32, 8, 1),
    ),
}
"""(float32 operands, largest padded key_dim) -> configurations."""
MIN_ROW_BYTES = 128
"""Least bytes of a row of values.

ptxas 12.8 computes some addresses of operands in shared memory from the wrong registers: products read other memory.
It did so in some passes with rows of 64 bytes or fewer. Gradients in float32 have tiles of 128 bytes for that reason.
Longer rows are no guarantee: `delta_walk` in float32 with 16 columns and 8 warps was wrong as well.
"""


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
        return max(MIN_TILE, next_power_of_two(self.key_dim))

    @property
    def padded_v(self) -> int:
        """`value_dim`, padded."""
        return max(MIN_ROW_BYTES // self.dot_dtype.itemsize, next_power_of_two(self.value_dim))

    @property
    def dot_dtype(self) -> torch.dtype:
        """Type of the operands of dot products."""
        return torch.float32 if self.wide else torch.bfloat16

    @property
    def sizes(self) -> tuple[int, ...]:
        """The `DeltaSizes`."""
        return self.length, self.chunks, self.rows, self.heads, self.key_heads

    @property
    def configs(self) -> DeltaConfigs:
        """Launch configurations."""
        return CONFIGS[self.wide, 64 if max(self.block_k, min(self.padded_v, 128)) <= 64 else 128]

    def matrix_shape(self, group: int = 1) -> tuple[int, ...]:
        """Return the shape of one [64, 64] matrix per chunk."""
        return self.rows * group, self.chunks, CHUNK_TOKENS, CHUNK_TOKENS

    @property
    def states_shape(self) -> tuple[int, ...]:
        """Shape of one state per chunk."""
        return self.rows, self.chunks, self.block_k, self.padded_v

    def saved_shapes(self, needs_backward: bool = True) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return shapes and types of gates, M, states, U, asks and P; only the backward reads asks and P."""
        tokens = self.chunks * CHUNK_TOKENS
        asks, pairs = (self.rows * self.group, tokens), self.matrix_shape(self.group)
        return (
            ((self.rows, self.chunks, GATE_ROWS, CHUNK_TOKENS), torch.float32),
            (self.matrix_shape(), self.dot_dtype),
            (self.states_shape, self.dot_dtype),
            ((self.rows, tokens, self.padded_v), self.dot_dtype),
            (asks if needs_backward else (0,), torch.float32),
            (pairs if needs_backward else (0,), self.dot_dtype),
        )

    def forward_multiplications(self) -> dict[str, int]:
        """Return the multiplications of one forward on tensor cores, with padding."""
        tokens, size = self.rows * self.chunks * CHUNK_TOKENS, self.block_k * self.padded_v
        tiles = ceil_div(self.padded_v, self.configs.output.block_v)
        return {
            "key pairs": tokens * self.block_k * 10 * MIN_TILE // 4,
            "inverse": tokens * 16 * MIN_TILE**2 // 4,
            "predict": tokens * size,
            "errors": tokens * CHUNK_TOKENS * self.padded_v,
            "write": tokens * size,
            "scores": tokens * self.group * CHUNK_TOKENS * self.block_k * tiles,
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
            "inputs": pairs * self.block_k * 2 * (1 + self.group),
            "read": tokens * size * (2 + self.group),
        }


class SavedChunks(NamedTuple):
    """What the forward leaves for the backward."""

    gates: Tensor
    inverse: Tensor
    states: Tensor
    updates: Tensor
    asks: Tensor
    pairs: Tensor


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
        PIECE_K=min(block_k, 32 if plan.wide else 64),
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
    )
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "maxnreg": config.max_registers}
    return Constants({"TILES": tiles}, options)


def constants_of(plan: DeltaPlan, config: DeltaConfig, *, has_state: bool = False) -> Constants:
    """Return constants that do not depend on batch and length, so that kernels are compiled once."""
    return _constants(replace(plan, batch=0, heads=0, key_heads=0, length=0), config, has_state)


def strides_of(*tensors: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """Return the `DeltaStrides` of q, k, v, out, d_q, d_k, d_v, decay and beta."""
    return tuple((0, 0, 0) if x is None else x.stride()[:3] for x in tensors)


def forward_passes(
    plan: DeltaPlan, x: DeltaOperands, initial: Tensor | None, scale: float, needs_backward: bool
) -> tuple[Tensor, Tensor, SavedChunks]:
    """Return outputs, the last state, and what the backward needs."""
    out = x.q.new_empty(*x.q.shape[:3], plan.value_dim)
    final = x.q.new_empty(plan.batch, plan.heads, plan.key_dim, plan.value_dim, dtype=torch.float32)
    saved = SavedChunks(*(x.q.new_empty(shape, dtype=dtype) for shape, dtype in plan.saved_shapes(needs_backward)))
    if not plan.rows:
        return out, final, saved
    prepare(plan, x, saved)
    walk(plan, x, saved, initial, final)
    if plan.chunks:
        read_outputs(plan, x, saved, out, scale)
    return out, final, saved


def prepare(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks) -> None:
    """Compute gates and M of all chunks."""
    if not plan.chunks:
        return
    strides = strides_of(*x[:3], None, None, None, None, x.decay, x.beta)
    tensors = x.k, x.decay, x.beta, x.starts, saved.gates, saved.inverse
    constants = constants_of(plan, plan.configs.prepare)
    PREPARE((plan.chunks * plan.rows, 1, 1), tensors, (strides, plan.sizes), constants)


def walk(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, initial: Tensor | None, final: Tensor) -> None:
    """Compute all states and updates."""
    strides, config = strides_of(*x[:3], None, None, None, None, None, None), plan.configs.walk
    tensors = x.k, x.v, saved.gates, saved.inverse, initial, saved.states, saved.updates, final
    constants = constants_of(plan, config, has_state=initial is not None)
    WALK((plan.rows, value_tiles(plan, config), 1), tensors, (strides, plan.sizes), constants)


def read_outputs(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, out: Tensor, scale: float) -> None:
    """Compute the outputs from states and updates."""
    strides, config = strides_of(*x[:3], out, None, None, None, None, None), plan.configs.output
    asks, pairs = (None if x.numel() == 0 else x for x in saved[4:])
    tensors = x.q, x.k, saved.gates, saved.states, saved.updates, out, asks, pairs
    grid = plan.chunks * plan.rows * plan.group, value_tiles(plan, config), 1
    OUTPUT(grid, tensors, (strides, plan.sizes, scale), constants_of(plan, config))


def value_tiles(plan: DeltaPlan, config: DeltaConfig) -> int:
    """Return the tiles of value columns."""
    return plan.padded_v // min(config.block_v, plan.padded_v)


class DeltaGradients(NamedTuple):
    """Gradients; those of k and v have one row per state, since states may share a key head."""

    d_q: Tensor
    d_k: Tensor
    d_v: Tensor
    d_decay: Tensor | None
    d_beta: Tensor | None
    d_initial: Tensor


def gradient_buffers(plan: DeltaPlan, x: DeltaOperands) -> DeltaGradients:
    """Return empty gradients."""
    shared = plan.key_heads != plan.heads
    tokens, dtype = (plan.batch, plan.heads, plan.length), torch.float32 if shared else x.k.dtype
    return DeltaGradients(
        empty_like_rows(x.q),
        x.k.new_empty(*tokens, plan.key_dim, dtype=dtype),
        x.v.new_empty(*tokens, plan.value_dim, dtype=plan.dot_dtype),
        x.q.new_empty(tokens, dtype=torch.float32) if plan.has_decay else None,
        x.q.new_empty(tokens, dtype=torch.float32) if plan.has_beta else None,
        x.q.new_empty(plan.batch, plan.heads, plan.key_dim, plan.value_dim, dtype=torch.float32),
    )


def backward_passes(
    plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, d_out: Tensor, d_final: Tensor | None, scale: float
) -> DeltaGradients:
    """Return the gradients."""
    found = gradient_buffers(plan, x)
    if not plan.rows:
        return found
    d_states = torch.empty_like(saved.states)
    walk_back(plan, x, saved, (d_out, d_final, d_states), found)
    if plan.chunks:
        compute_gradients(plan, x, saved, (d_out, d_states), found, scale)
    return found


def walk_back(
    plan: DeltaPlan,
    x: DeltaOperands,
    saved: SavedChunks,
    gradients: tuple[Tensor, Tensor | None, Tensor],
    found: DeltaGradients,
) -> None:
    """Compute the gradients of all states and of v."""
    d_out, d_final, d_states = gradients
    strides, config = strides_of(*x[:3], d_out, *found[:3], x.decay, x.beta), plan.configs.walk_back
    chunk = saved.gates, saved.inverse, saved.asks, saved.pairs
    tensors = x.q, x.k, d_out, *chunk, d_final, d_states, found.d_v, found.d_initial
    constants = constants_of(plan, config, has_state=d_final is not None)
    WALK_BACK((plan.rows, value_tiles(plan, config), 1), tensors, (strides, plan.sizes), constants)


def compute_gradients(
    plan: DeltaPlan,
    x: DeltaOperands,
    saved: SavedChunks,
    gradients: tuple[Tensor, Tensor],
    found: DeltaGradients,
    scale: float,
) -> None:
    """Compute the gradients of q, k, decay and beta."""
    d_out, d_states = gradients
    strides, config = strides_of(*x[:3], d_out, *found[:3], x.decay, x.beta), plan.configs.grad
    chunk = saved.gates, saved.asks, saved.states, d_states, saved.updates
    tensors = x.q, x.k, d_out, *chunk, found.d_v, x.starts, found.d_q, found.d_k, found.d_decay, found.d_beta
    grid = plan.chunks * plan.rows, 1, 1
    GRAD(grid, tensors, (strides, plan.sizes, scale), constants_of(plan, config))
