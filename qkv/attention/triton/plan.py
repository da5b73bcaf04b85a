"""The sizes of one call of the kernels of `feature_map_triton`: tiles, blocks, and what they multiply."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from qkv.attention.triton.configs import FASTEST, NARROW, PLAIN, Launch, Launches
from qkv.attention.triton.kernels import linear as linear_triton
from qkv.attention.triton.kernels import taylor as taylor_triton

SMALLEST = 16
"""The least width of a tile that a tensor core takes."""


def blocks_of(length: int, block: int) -> int:
    """Blocks that hold so many; triton's own function takes a hundred times as long, and a call asks 60 times."""
    return -(-length // block)


def power_of_two(number: int) -> int:
    """The least that is not below `number`; likewise."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Kind:
    """What a kind passes to the kernels."""

    lift: Callable[..., Any]
    lower: Callable[..., Any]
    weight: Callable[..., Any]
    slope: Callable[..., Any]
    chosen: Callable[..., Any]
    turned: Callable[..., Any]
    features: Callable[..., Any]
    pull: Callable[..., Any]
    normalizes: bool
    scales_scores: bool
    """Whether the scale multiplies q.k; otherwise it is inside the map."""
    largest_key_dim: int
    segment: int
    """Tokens between two prefixes, where no other number is asked for."""
    wide_segment: int
    """The same for keys of more than 16 numbers: their memory is larger, and kept less often."""


_linear, _taylor = linear_triton, taylor_triton
KINDS = {
    "taylor": Kind(
        _linear.lift,
        _linear.lower,
        _taylor.weight,
        _taylor.slope,
        _taylor.chosen,
        _taylor.turned,
        _taylor.features,
        _taylor.pull,
        True,
        True,
        64,
        256,
        512,
    ),
    "linear": Kind(
        _linear.lift,
        _linear.lower,
        _linear.weight,
        _linear.slope,
        _linear.chosen,
        _linear.turned,
        _linear.features,
        _linear.pull,
        False,
        True,
        128,
        128,
        128,
    ),
    "elu": Kind(
        _linear.lift_elu,
        _linear.lower_elu,
        _linear.weight,
        _linear.slope,
        _linear.chosen,
        _linear.turned_elu,
        _linear.features_elu,
        _linear.pull,
        True,
        False,
        128,
        128,
        128,
    ),
}
LARGEST_VALUE_DIM = 256


@dataclass(frozen=True)
class Stretches:
    """How a sequence is walked: stretches at the same time, the segments of one after each other."""

    segments: int
    per: int
    """Segments of a stretch."""
    local: bool
    """Whether a prefix is kept before each segment of a stretch, or only one before the stretch."""

    @property
    def count(self) -> int:
        """How many."""
        return blocks_of(self.segments, self.per)

    def slots(self, *, started: bool) -> int:
        """Prefixes of a row: of the segments in their stretches, then of the stretches if anything is before them."""
        within = self.segments if self.local else 0
        return within + self.count if started or self.count > 1 or not self.local else within


@dataclass(frozen=True, eq=False)
class Plan:
    """The sizes of one call; compared by identity, since much is looked up by it."""

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

    @cached_property
    def parts(self) -> Kind:
        """The functions of the kind."""
        return KINDS[self.kind]

    @cached_property
    def key_size(self) -> int:
        """`key_dim` in whole tiles."""
        return max(SMALLEST, power_of_two(self.key_dim))

    @cached_property
    def value_size(self) -> int:
        """Columns of values that one program takes."""
        return min(128, max(SMALLEST, power_of_two(self.value_dim)))

    @cached_property
    def value_blocks(self) -> int:
        """How many programs take them all."""
        return blocks_of(self.value_dim, self.value_size)

    @cached_property
    def features(self) -> int:
        """Features of a key."""
        return comb(self.key_dim + 2, 2) if self.kind == "taylor" else self.key_dim

    @cached_property
    def launches(self) -> Launches:
        """How the passes are cut up."""
        kind = "wide taylor" if self.expands and self.key_size > SMALLEST else self.kind
        wide = max(self.value_size, self.key_size) > 64
        if self.type == torch.float32:
            return NARROW if wide else PLAIN
        return FASTEST[f"{kind}, 128" if wide else kind]

    @cached_property
    def written(self) -> int:
        """Features that are summed at once: as many as a tensor core takes rows."""
        return self._tile(64)

    def taken(self, launch: Launch) -> int:
        """Features that are read at once: fewer, since the last ones are then wasted less."""
        return self._tile(launch.taken)

    @cached_property
    def width(self) -> int:
        """Features as they lie in memory."""
        return self._whole_blocks(self.features, self.written)

    def _tile(self, largest: int) -> int:
        if not self.expands:
            return self.key_size
        return min(largest, max(SMALLEST, power_of_two(self.features)))

    @cached_property
    def type(self) -> torch.dtype:
        """Of the operands of products: float16 is widened, since a square of scores can leave its range."""
        return torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32

    @cached_property
    def score_scale(self) -> float:
        """What multiplies q.k."""
        return self.scale if self.parts.scales_scores else 1.0

    @cached_property
    def expands(self) -> bool:
        """Whether features are more than the lifted numbers themselves."""
        return self.kind == "taylor"

    @cached_property
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

    def stretches(self, length: int, rows: int, *, decays: bool) -> Stretches:
        """Of this many rows of tokens; what fades is walked segment by segment, for the sake of its gradient."""
        segments = max(blocks_of(length, self.segment), 1)
        if decays or not self.causal:
            return Stretches(segments, 1, False)
        programs = rows * self.width // self.written * self.value_blocks
        count = min(max(blocks_of(self.launches.programs, max(programs, 1)), 1), segments)
        return Stretches(segments, blocks_of(segments, count), True)

    def order(self, device: torch.device) -> Tensor | None:
        """The place of each feature in a memory as others keep it; None: it is the same."""
        return taylor_triton.order(self.key_dim, device) if self.expands else None

    @cached_property
    def inside(self) -> str:
        """Whom the kernels attend to one by one."""
        if self.causal:
            return "causal"
        return "" if self.remembers else "all"

    def forward_multiplications(self, batch: int, heads: int, queries: int) -> dict[str, int]:
        """What the tensor cores do for one forward, padding and choice of features included."""
        values, rows = self.value_size * self.value_blocks, batch * heads
        inside = self._pairs(queries, self.keys, self.launches.read) * rows
        found = {"scores": inside * self.key_size * self.value_blocks, "values": inside * values}
        if self.remembers:
            found["write"] = self._written(batch * self.key_heads, self.keys, self.launches.write)
            found["read"] = self._read(rows, queries, self.launches.read)
        return found

    def backward_multiplications(self, batch: int, heads: int, queries: int, *, decays: bool) -> dict[str, int]:
        """The same for the backward: the queries' sums, and the gradients of q, k, v and decay."""
        values, parts, rows = self.value_size * self.value_blocks, self.value_blocks, batch * heads
        by_queries = self._pairs(queries, self.keys, self.launches.queries)
        by_keys = self._pairs(self.keys, queries, self.launches.keys, reverse=True)
        for_values = self._pairs(self.keys, queries, self.launches.values, reverse=True)
        found = {
            "scores": rows * self.key_size * (by_queries + by_keys + for_values * parts),
            "values": rows * values * (by_queries + by_keys + for_values),
            "inputs": rows * self.key_size * (by_queries + by_keys),
        }
        if self.remembers:
            found["write"] = self._written(rows, queries, self.launches.back)
            found["read"] = self._read(batch * self.key_heads, self.keys, self.launches.values)
            found["pull"] = self._pulled(rows, queries, self.launches.queries, decays)
            found["pull"] += self._pulled(batch * self.key_heads, self.keys, self.launches.keys, decays)
        return found

    def _written(self, rows: int, length: int, launch: Launch) -> int:
        tokens = rows * self._whole_blocks(length, self.block(launch.block))
        return tokens * self.width * (self.value_size + self._expanding) * self.value_blocks

    def _read(self, rows: int, length: int, launch: Launch) -> int:
        tokens = rows * self._whole_blocks(length, self.block(launch.block))
        features = self._whole_blocks(self.features, self.taken(launch))
        return tokens * features * (self.value_size + self._expanding) * self.value_blocks

    def _pulled(self, rows: int, length: int, launch: Launch, decays: bool) -> int:
        """Features are made to be weighed, and once more for the gradient of a decay."""
        tokens = rows * self._whole_blocks(length, self.block(launch.block))
        features = self._whole_blocks(self.features, self.taken(launch))
        return tokens * features * (self.value_size * self.value_blocks + (2 + decays) * self._expanding)

    @cached_property
    def _expanding(self) -> int:
        """Multiplications that make one feature of one token: two choices, or none."""
        return 2 * self.key_size if self.kind == "taylor" else 0

    def _whole_blocks(self, length: int, block: int) -> int:
        return block * blocks_of(length, block)

    def _pairs(self, asking: int, answering: int, launch: Launch, *, reverse: bool = False) -> int:
        """Pairs of tokens that meet one by one, in whole blocks: from the segment's start on, or to its end."""
        block, other = self.block(launch.block), self.block(launch.met)
        if self.inside == "":
            return 0
        if self.inside == "all":
            return self._whole_blocks(asking, block) * self._whole_blocks(answering, other)
        full, rest = divmod(asking, self.segment)
        whole, last = (self._causal_pairs(length, block, other, reverse) for length in (self.segment, rest))
        return full * whole + last

    def _causal_pairs(self, length: int, block: int, other: int, reverse: bool) -> int:
        met = (length - start if reverse else min(start + block, length) for start in range(0, length, block))
        return sum(block * self._whole_blocks(tokens, other) for tokens in met)

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
            "TILES": blocks_of(self.features, tile),
            "PURE": comb(self.key_dim + 1, 2) // tile if self.expands else 0,
            "SEGMENT": self.segment,
            "TYPE": tl.bfloat16 if self.type == torch.bfloat16 else tl.float32,
            "PRECISION": "tf32x3",
        }

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """What makes the features of tokens."""
        if self.expands:
            return taylor_triton.tables(self.key_dim, self.key_size, self.width, self.type, device)
        nothing = torch.empty(0, device=device)
        return nothing, nothing, nothing


plan_of = lru_cache(maxsize=4096)(Plan)
"""A call's plan is that of the next one, with all that it has worked out; sizes that are symbols cannot be kept."""
