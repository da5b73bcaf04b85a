"""Sizes of one call of the kernels: tiles, blocks, and the multiplications that they execute."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import triton.language as tl
from torch import Tensor

from qkv.attention.triton import configs
from qkv.attention.triton.configs import KernelConfig, PassConfigs
from qkv.attention.triton.constants import TileSizes
from qkv.attention.triton.kinds import KernelKind

MIN_TILE = 16
"""Narrowest tile that a tensor core takes."""
MAX_WRITE_TILE = 64
"""Rows of the tensor core's tile: features that are accumulated at once."""
MAX_VALUE_BLOCK = 128
MAX_VALUE_DIM = 256


def ceil_div(length: int, block: int) -> int:
    """Return the number of blocks; triton's `cdiv` takes a hundred times as long, and a call needs 60."""
    return -(-length // block)


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`; triton's is slow, too."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Partition:
    """Division of a sequence into splits, which run in parallel, and of splits into segments, which run in order."""

    segments: int
    segments_per_split: int
    has_local_prefix: bool
    """Whether a prefix state is stored before each segment of a split, or only before the split."""

    @property
    def num_splits(self) -> int:
        """Splits of the sequence."""
        return ceil_div(self.segments, self.segments_per_split)

    def prefix_slots(self, *, has_initial: bool) -> int:
        """Return the prefix states per row: those of segments, then those of splits if anything precedes them."""
        local = self.segments if self.has_local_prefix else 0
        return local + self.num_splits if has_initial or self.num_splits > 1 or not self.has_local_prefix else local


@dataclass(frozen=True, eq=False)
class Plan:
    """Sizes of one call; compared by identity, since launches are cached by it."""

    kernel: KernelKind
    causal: bool
    scale: float
    segment: int
    keys: int
    key_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    has_state: bool
    """Whether a state is read; otherwise every key is attended to one by one."""

    @cached_property
    def block_k(self) -> int:
        """`key_dim`, padded to a tile."""
        return max(MIN_TILE, next_power_of_two(self.key_dim))

    @cached_property
    def block_v(self) -> int:
        """Value columns that one program takes."""
        return min(MAX_VALUE_BLOCK, max(MIN_TILE, next_power_of_two(self.value_dim)))

    @cached_property
    def value_blocks(self) -> int:
        """Programs that take all columns."""
        return ceil_div(self.value_dim, self.block_v)

    @cached_property
    def padded_values(self) -> int:
        """Columns of a state, in whole blocks."""
        return self.block_v * self.value_blocks

    @cached_property
    def has_feature_expansion(self) -> bool:
        """Whether features are more than the mapped inputs."""
        return self.kernel.expansion is not None

    @cached_property
    def features(self) -> int:
        """Features per key."""
        expansion = self.kernel.expansion
        return self.key_dim if expansion is None else expansion.feature_dim(self.key_dim)

    @cached_property
    def configs(self) -> PassConfigs:
        """Launch configurations of the passes."""
        if self.dot_dtype == torch.float32:
            return configs.WIDE_FLOAT32 if max(self.block_v, self.block_k) > 64 else configs.DEFAULT
        return configs.tuned_for(self.kernel.configs, self.block_k, self.block_v)

    def pass_configs(self, *, gated: bool) -> PassConfigs:
        """Return the launch configurations with a gate per token, or for none."""
        return self.configs.gated or self.configs if gated else self.configs

    @cached_property
    def write_tile(self) -> int:
        """Features that are accumulated at once."""
        return self._tile(MAX_WRITE_TILE)

    def read_tile(self, config: KernelConfig) -> int:
        """Return the features that are read at once: fewer, so that less of the last tile is wasted."""
        return self._tile(config.feature_block)

    @cached_property
    def padded_features(self) -> int:
        """Features of a state, in whole tiles."""
        return self._whole_blocks(self.features, self.write_tile)

    def _tile(self, largest: int) -> int:
        if not self.has_feature_expansion:
            return self.block_k
        return min(largest, max(MIN_TILE, next_power_of_two(self.features)))

    @cached_property
    def dot_dtype(self) -> torch.dtype:
        """Type of the operands of dot products: float16 is upcast, since the square of a score can overflow it."""
        return torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32

    @cached_property
    def sums_pairs(self) -> bool:
        """Whether weights times their gradients are summed pair by pair, for the gradient of a gate.

        Without an expansion they are also a token's features times their gradients. That is faster, but it contains the
        pairs of a token with itself, which then cancel in the type of the operands only.
        """
        return self.has_feature_expansion or self.dot_dtype == torch.float32

    @cached_property
    def score_scale(self) -> float:
        """Factor of q.k."""
        return self.scale if self.kernel.scales_scores else 1.0

    @cached_property
    def result_scale(self) -> float:
        """Factor of results: the scale of linear features, which is applied last."""
        return self.scale if self.kernel.scales_scores and not self.has_feature_expansion else 1.0

    def token_weights(self, scale: float, device: torch.device) -> Tensor | float:
        """Return the factor of each feature of a token with this scale; the kernels sum features without it."""
        if self.kernel.expansion is not None:
            return self.kernel.expansion.weights(self.key_dim, scale, device)[:, None]
        return scale if self.kernel.scales_scores else 1.0

    def state_weights(self, device: torch.device) -> Tensor | None:
        """Return the product of a query's and a key's factor per feature; a state is multiplied by it once."""
        if self.kernel.expansion is None:
            return None
        return self.kernel.expansion.state_weights(self.key_dim, self.scale, self.padded_features, device)

    def feature_order(self, device: torch.device) -> Tensor | None:
        """Return the index of each feature in `FeatureMap.features`; None: the same order."""
        return None if self.kernel.expansion is None else self.kernel.expansion.order(self.key_dim, device)

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tables that features are computed from: first_picks, second_picks and biases."""
        if self.kernel.expansion is not None:
            sizes = self.key_dim, self.block_k, self.padded_features
            return self.kernel.expansion.tables(*sizes, self.dot_dtype, device)
        unused = torch.empty(0, device=device)
        return unused, unused, unused

    def partition(self, length: int, rows: int, *, has_decay: bool) -> Partition:
        """Return the partition of `rows` sequences; with decay each segment is a split, for the decay's gradient."""
        segments = max(ceil_div(length, self.segment), 1)
        if has_decay or not self.causal:
            return Partition(segments, 1, False)
        programs = rows * self.padded_features // self.write_tile * self.value_blocks
        splits = min(max(ceil_div(self.configs.min_programs, max(programs, 1)), 1), segments)
        return Partition(segments, ceil_div(segments, splits), True)

    @cached_property
    def intra(self) -> str:
        """Tokens that are attended to one by one: "causal" (those of the segment), "all" or "none"."""
        if self.causal:
            return "causal"
        return "none" if self.has_state else "all"

    def block(self, largest: int) -> int:
        """Return a power of two of tokens that divides a segment."""
        return min(largest, self.segment & -self.segment)

    def tile_sizes(self, tile: int, config: KernelConfig) -> TileSizes:
        """Return the compile-time sizes of a kernel with this feature tile."""
        return TileSizes(
            KEY_DIM=self.key_dim,
            BLOCK_K=self.block_k,
            VALUE_DIM=self.value_dim,
            BLOCK_V=self.block_v,
            VALUE_BLOCKS=self.value_blocks,
            PADDED_FEATURES=self.padded_features,
            BLOCK_F=tile,
            FEATURE_TILES=ceil_div(self.features, tile),
            PURE_TILES=self._pure_tiles(tile),
            SEGMENT=self.segment,
            BLOCK_A=self.block(config.block),
            BLOCK_B=self.block(config.key_block),
            DTYPE=tl.bfloat16 if self.dot_dtype == torch.bfloat16 else tl.float32,
            PRECISION="tf32x3",
        )

    def _pure_tiles(self, tile: int) -> int:
        """Return the leading tiles without a bias.

        Two tiles remain for wide keys. A single one is not a loop, and ptxas 12.8 then gives its dot product the wrong
        address in shared memory (key_dim 32 in bfloat16).
        """
        if self.kernel.expansion is None:
            return 0
        pure = self.kernel.expansion.pure_features(self.key_dim) // tile
        return pure if self.block_k == MIN_TILE else max(0, min(pure, ceil_div(self.features, tile) - 2))

    def forward_multiplications(self, batch: int, heads: int, queries: int, *, gated: bool = False) -> dict[str, int]:
        """Return the multiplications of one forward on tensor cores, with padding and the selection of features."""
        rows, configs_of = batch * heads, self.pass_configs(gated=gated)
        pairs = self._pairs(queries, self.keys, configs_of.output) * rows
        found = {"scores": pairs * self.block_k * self.value_blocks, "values": pairs * self.padded_values}
        if self.has_state:
            found["write"] = self._write(batch * self.key_heads, self.keys, configs_of.state)
            found["read"] = self._read(rows, queries, configs_of.output)
        return found

    def backward_multiplications(
        self, batch: int, heads: int, queries: int, *, has_decay: bool, gated: bool = False
    ) -> dict[str, int]:
        """Return the multiplications of one backward: the sums over queries, and the gradients of q, k, v and decay."""
        rows, key_rows, configs_of = batch * heads, batch * self.key_heads, self.pass_configs(gated=gated)
        q_pairs = self._pairs(queries, self.keys, configs_of.grad_q)
        k_pairs = self._pairs(self.keys, queries, configs_of.grad_k, reverse=True)
        v_pairs = self._pairs(self.keys, queries, configs_of.grad_v, reverse=True)
        found = {
            "scores": rows * self.block_k * (q_pairs + k_pairs + v_pairs * self.value_blocks),
            "values": rows * self.padded_values * (q_pairs + k_pairs + v_pairs),
            "inputs": rows * self.block_k * (q_pairs + k_pairs),
        }
        if self.has_state:
            found["write"] = self._write(rows, queries, configs_of.grad_state)
            found["read"] = self._read(key_rows, self.keys, configs_of.grad_v)
            found["grad_qk"] = self._grad_qk(rows, queries, configs_of.grad_q, has_decay, gated)
            found["grad_qk"] += self._grad_qk(key_rows, self.keys, configs_of.grad_k, has_decay, gated)
        return found

    def _write(self, rows: int, length: int, config: KernelConfig) -> int:
        tokens = rows * self._whole_blocks(length, self.block(config.block))
        return tokens * self.padded_features * (self.block_v + self._per_feature) * self.value_blocks

    def _read(self, rows: int, length: int, config: KernelConfig) -> int:
        tokens = rows * self._whole_blocks(length, self.block(config.block))
        features = self._whole_blocks(self.features, self.read_tile(config))
        return tokens * features * (self.block_v + self._per_feature) * self.value_blocks

    def _grad_qk(self, rows: int, length: int, config: KernelConfig, has_decay: bool, gated: bool) -> int:
        """Return the multiplications of `grad_qk`; with decay, features are computed once more for its gradient.

        With a gate, only those of tiles that are not pure.
        """
        tokens = rows * self._whole_blocks(length, self.block(config.block))
        tile = self.read_tile(config)
        features = self._whole_blocks(self.features, tile)
        again = features if has_decay else (features - tile * self._pure_tiles(tile)) * gated
        return tokens * (features * (self.padded_values + 2 * self._per_feature) + again * self._per_feature)

    @cached_property
    def _per_feature(self) -> int:
        """Multiplications to compute one feature of one token: those that select its two factors, or 0."""
        return 2 * self.block_k if self.has_feature_expansion else 0

    def _whole_blocks(self, length: int, block: int) -> int:
        return block * ceil_div(length, block)

    def _pairs(self, a_length: int, b_length: int, config: KernelConfig, *, reverse: bool = False) -> int:
        """Return the number of (query, key) pairs that are attended to one by one, in whole blocks."""
        block, other = self.block(config.block), self.block(config.key_block)
        if self.intra == "none":
            return 0
        if self.intra == "all":
            return self._whole_blocks(a_length, block) * self._whole_blocks(b_length, other)
        full, rest = divmod(a_length, self.segment)
        whole, last = (self._causal_pairs(length, block, other, reverse) for length in (self.segment, rest))
        return full * whole + last

    def _causal_pairs(self, length: int, block: int, other: int, reverse: bool) -> int:
        visible = (length - start if reverse else min(start + block, length) for start in range(0, length, block))
        return sum(block * self._whole_blocks(tokens, other) for tokens in visible)


plan_of = lru_cache(maxsize=4096)(Plan)
"""The plan of a call, shared with later calls of the same sizes; symbolic sizes cannot be cached."""
