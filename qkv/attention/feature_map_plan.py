"""The sizes of one call of the kernels of `feature_map_triton`: tiles, blocks, and what they multiply."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from qkv.attention import linear_triton, taylor_triton

SMALLEST = 16
"""The least width of a tile that a tensor core takes."""


@dataclass(frozen=True)
class Kind:
    """What a kind passes to the kernels."""

    lift: Callable[..., Any]
    lower: Callable[..., Any]
    weight: Callable[..., Any]
    slope: Callable[..., Any]
    features: Callable[..., Any]
    pull: Callable[..., Any]
    normalises: bool
    scales_scores: bool
    """Whether the scale multiplies q.k; otherwise it is inside the map."""
    largest_key_dim: int
    segment: int
    """Tokens between two prefixes, where no other number is asked for."""


_linear, _taylor = linear_triton, taylor_triton
KINDS = {
    "taylor": Kind(
        _linear.lift, _linear.lower, _taylor.weight, _taylor.slope, _taylor.features, _taylor.pull, True, True, 64, 512
    ),
    "linear": Kind(
        _linear.lift,
        _linear.lower,
        _linear.weight,
        _linear.slope,
        _linear.features,
        _linear.pull,
        False,
        True,
        128,
        256,
    ),
    "elu": Kind(
        _linear.lift_elu,
        _linear.lower_elu,
        _linear.weight,
        _linear.slope,
        _linear.features_elu,
        _linear.pull,
        True,
        False,
        128,
        256,
    ),
}
LARGEST_VALUE_DIM = 256


@dataclass(frozen=True)
class Launch:
    """How a kernel is cut up: tokens a program takes, warps, loads under way at once, registers of a thread."""

    block: int
    warps: int
    stages: int
    registers: int | None = None
    """Fewer let more programs live on a processor at the same time."""

    def options(self) -> dict[str, int | None]:
        """What the compiler is told."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


WRITE, READ, PULL = Launch(64, 4, 3), Launch(128, 8, 2), Launch(64, 4, 2)
TAKEN = 32
"""Features of a query that read the memory at a time."""
MET = 64
"""Tokens that a block meets one by one at a time."""


@dataclass(frozen=True)
class Plan:
    """The sizes of one call."""

    kind: str
    causal: bool
    scale: float
    segment: int
    keys: int
    key_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    remembers: bool
    """Whether a memory is read, or every key one by one."""

    @property
    def parts(self) -> Kind:
        """The functions of the kind."""
        return KINDS[self.kind]

    @property
    def key_size(self) -> int:
        """`key_dim` in whole tiles."""
        return max(SMALLEST, triton.next_power_of_2(self.key_dim))

    @property
    def value_size(self) -> int:
        """Columns of values that one program takes."""
        return min(128, max(SMALLEST, triton.next_power_of_2(self.value_dim)))

    @property
    def value_blocks(self) -> int:
        """How many programs take them all."""
        return triton.cdiv(self.value_dim, self.value_size)

    @property
    def features(self) -> int:
        """Features of a key."""
        return comb(self.key_dim + 2, 2) if self.kind == "taylor" else self.key_dim

    @property
    def written(self) -> int:
        """Features that are summed at once: as many as a tensor core takes rows."""
        return self._tile(64)

    @property
    def taken(self) -> int:
        """Features that are read at once: fewer, since the last ones are then wasted less."""
        return self._tile(TAKEN)

    @property
    def width(self) -> int:
        """Features as they lie in memory."""
        return self._whole_blocks(self.features, self.written)

    def _tile(self, largest: int) -> int:
        if not self.expands:
            return self.key_size
        return min(largest, max(SMALLEST, triton.next_power_of_2(self.features)))

    @property
    def type(self) -> torch.dtype:
        """Of the operands of products: float16 is widened, since a square of scores can leave its range."""
        return torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32

    @property
    def score_scale(self) -> float:
        """What multiplies q.k."""
        return self.scale if self.parts.scales_scores else 1.0

    @property
    def expands(self) -> bool:
        """Whether features are more than the lifted numbers themselves."""
        return self.kind == "taylor"

    @property
    def result_scale(self) -> float:
        """What multiplies results: the scale of linear features, which is left to the end."""
        return self.scale if self.parts.scales_scores and not self.expands else 1.0

    def side_weights(self, scale: float, device: torch.device) -> Tensor | float:
        """What a token of this scale has in front of each feature; the kernels sum features without it."""
        if self.expands:
            return taylor_triton.weights(self.key_dim, scale, device)[:, None]
        return scale if self.parts.scales_scores else 1.0

    def memory_weights(self, device: torch.device) -> Tensor | None:
        """What the sums of features are multiplied by before they are read, in whole tiles: those of both sides."""
        return taylor_triton.memory_weights(self.key_dim, self.scale, self.width, device) if self.expands else None

    def order(self, device: torch.device) -> Tensor | None:
        """The place of each feature in a memory as others keep it; None: it is the same."""
        return taylor_triton.order(self.key_dim, device) if self.expands else None

    @property
    def inside(self) -> str:
        """Whom the kernels attend to one by one."""
        if self.causal:
            return "causal"
        return "" if self.remembers else "all"

    def forward_multiplications(self, batch: int, heads: int, queries: int) -> dict[str, int]:
        """What the tensor cores do for one forward, padding and choice of features included."""
        width, taken, expanding = self.width, self._whole_blocks(self.features, self.taken), self._expanding
        values = self.value_size * self.value_blocks
        asked = batch * heads * self._whole_blocks(queries, self.block(READ.block))
        inside = self._pairs(queries, self.keys, READ.block) * batch * heads
        found = {"scores": inside * self.key_size * self.value_blocks, "values": inside * values}
        if self.remembers:
            written = batch * self.key_heads * self._whole_blocks(self.keys, self.block(WRITE.block))
            found["write"] = written * width * (values + expanding * self.value_blocks)
            found["read"] = asked * taken * (values + expanding * self.value_blocks)
        return found

    def backward_multiplications(self, batch: int, heads: int, queries: int) -> dict[str, int]:
        """The same for the backward: the queries' sums, and the gradients of q, k and v."""
        width, taken, expanding = self.width, self._whole_blocks(self.features, self.taken), self._expanding
        values, parts = self.value_size * self.value_blocks, self.value_blocks
        by_queries = self._pairs(queries, self.keys, PULL.block)
        by_keys = self._pairs(self.keys, queries, PULL.block)
        for_values = self._pairs(self.keys, queries, READ.block)
        found = {
            "scores": batch * heads * self.key_size * (by_queries + by_keys + for_values * parts),
            "values": batch * heads * values * (by_queries + by_keys + for_values),
            "inputs": batch * heads * self.key_size * (by_queries + by_keys),
        }
        if self.remembers:
            written = batch * heads * self._whole_blocks(queries, self.block(WRITE.block))
            pulled = batch * heads * self._whole_blocks(queries, self.block(PULL.block))
            pulled += batch * self.key_heads * self._whole_blocks(self.keys, self.block(PULL.block))
            read = batch * self.key_heads * self._whole_blocks(self.keys, self.block(READ.block))
            found["write"] = written * width * (values + expanding * parts)
            found["read"] = read * taken * (values + expanding * parts)
            found["pull"] = pulled * taken * (values + 2 * expanding)
        return found

    @property
    def _expanding(self) -> int:
        """Multiplications that make one feature of one token: two choices, or none."""
        return 2 * self.key_size if self.kind == "taylor" else 0

    def _whole_blocks(self, length: int, block: int) -> int:
        return block * triton.cdiv(length, block)

    def _pairs(self, asking: int, answering: int, largest: int) -> int:
        """Pairs of tokens that meet one by one, in whole blocks."""
        block, other = self.block(largest), self.block(MET)
        if self.inside == "":
            return 0
        if self.inside == "all":
            return self._whole_blocks(asking, block) * self._whole_blocks(answering, other)
        full, rest = divmod(asking, self.segment)
        return full * self._causal_pairs(self.segment, block, other) + self._causal_pairs(rest, block, other)

    def _causal_pairs(self, length: int, block: int, other: int) -> int:
        ends = (min(start + block, length) for start in range(0, length, block))
        return sum(block * self._whole_blocks(end, other) for end in ends)

    def block(self, largest: int) -> int:
        """A power of two of tokens that divides a segment."""
        return min(largest, self.segment & -self.segment)

    def sizes(self, tile: int) -> dict[str, Any]:
        """What a kernel is told that makes so many features at a time."""
        return {
            "KEY_DIM": self.key_dim,
            "KEY_SIZE": self.key_size,
            "VALUE_DIM": self.value_dim,
            "VALUE_SIZE": self.value_size,
            "VALUE_BLOCKS": self.value_blocks,
            "WIDTH": self.width,
            "TILE": tile,
            "TILES": triton.cdiv(self.features, tile),
            "PURE": comb(self.key_dim + 1, 2) // tile if self.expands else 0,
            "SEGMENT": self.segment,
            "TYPE": tl.bfloat16 if self.type == torch.bfloat16 else tl.float32,
            "PRECISION": "tf32x3" if self.dtype == torch.float32 else "tf32",
        }

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """What makes the features of tokens."""
        if self.expands:
            return taylor_triton.tables(self.key_dim, self.key_size, self.width, self.type, device)
        nothing = torch.empty(0, device=device)
        return nothing, nothing, nothing
