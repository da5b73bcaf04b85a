"""Bytes that one device sends in a step, by kind of communication; it receives as many.

    all-reduce of b bytes among n processes, as a ring         2 (n - 1) / n * b
    all-gather to, or reduce-scatter of, b bytes               (n - 1) / n * b

The time of a call is bounded by the link inside a node, which carries these bytes, and by the network. With k of the n
processes on each of N nodes, a node needs (N - 1) / N * b bytes (all-reduce: twice) from others, through k cards.
"""

from dataclasses import dataclass
from math import ceil

from qkv.profile.plan.exchange import exchanges
from qkv.profile.plan.gpus import Gpu
from qkv.profile.plan.memory import MASTER_BYTES
from qkv.profile.plan.request import TrainingStep
from qkv.train.parallel.units import ModelUnits


@dataclass(frozen=True)
class Ranks:
    """Processes that communicate: `size` of them, each `stride` ranks after the one before."""

    size: int
    stride: int

    def per_node(self, node: int) -> int:
        """Return how many of them are on one node, if ranks fill nodes of this size in order."""
        return min(self.size, max(node // self.stride, 1))

    def nodes(self, node: int) -> int:
        """Return the number of nodes they are on."""
        return ceil(self.size / self.per_node(node))


@dataclass(frozen=True)
class Transfer:
    """All calls of one kind of communication in a step."""

    name: str
    formula: str
    calls: int
    payload: int
    """Bytes of the whole tensors, over all calls."""
    group: Ranks
    passes: int = 1
    """1 for an all-gather or a reduce-scatter, 2 for an all-reduce, which is both."""
    with_recompute: bool = False
    """Whether it happens only if the forward pass runs again."""

    @property
    def sent(self) -> int:
        """Bytes that one process sends; it receives as many."""
        return self.passes * (self.group.size - 1) * self.payload // self.group.size

    def link_seconds(self, gpu: Gpu, node: int) -> float:
        """Return the shortest time on the link inside a node."""
        return self.sent / gpu.link if self.group.per_node(node) > 1 else 0.0

    def network_seconds(self, node: int, network: float) -> float:
        """Return the shortest time on a network of `network` bytes/s per GPU."""
        nodes = self.group.nodes(node)
        if nodes == 1:
            return 0.0
        return self.passes * (nodes - 1) / nodes * self.payload / (self.group.per_node(node) * network)


def plan_traffic(step: TrainingStep, units: ModelUnits) -> list[Transfer]:
    """Return the communication of one step, in the order in which it happens."""
    found = [*_of_sequence(step), *_of_shards(step, units), *_of_replicas(step, units)]
    return [transfer for transfer in found if transfer.payload and transfer.group.size > 1]


def _of_sequence(step: TrainingStep) -> list[Transfer]:
    """Return the exchange of states, keys and values, and neighbors among the parts of a sequence."""
    parts = step.mesh.sequence
    if parts == 1:
        return []
    group, found = Ranks(parts, 1), exchanges(step)
    times = step.accumulation
    kinds = (
        ("keys and values", "Q * keys and values of T tokens", [x.attention for x in found if x.scored]),
        ("states", "Q * summary of T tokens", [x.attention for x in found if not x.scored]),
        ("convolutions", "Q * (width - 1) tokens", [x.neighbors for x in found if x.neighbors]),
    )
    return [
        Transfer(
            f"sequence: {name}, {phase}",
            formula,
            len(sizes) * times,
            parts * sum(sizes) * times,
            group,
            with_recompute=phase == "recompute",
        )
        for name, formula, sizes in kinds
        for phase in ("forward", "backward", "recompute")
    ]


def _of_shards(step: TrainingStep, units: ModelUnits) -> list[Transfer]:
    """Return what FSDP2 gathers and scatters: blocks are gathered again in the backward pass, the rest is not.

    Blocks are gathered in the precision of products. All gradients are reduced in float32, after the last micro-batch.
    """
    parts, times, low = step.shards, step.accumulation, step.product_bytes
    group, count = Ranks(parts, 1), len(units.blocks)
    whole, root = units.elements(parts), MASTER_BYTES * units.root.elements(parts)
    blocks = low * sum(unit.elements(parts) for unit in units.blocks)
    forward = f"4 R + {low} (P - R)"
    return [
        Transfer("FSDP2: all-gather, forward", forward, (count + 1) * times, (root + blocks) * times, group),
        Transfer("FSDP2: all-gather, backward", f"{low} (P - R)", count * times, blocks * times, group),
        Transfer("FSDP2: reduce-scatter of gradients", "4 P", count + 1, MASTER_BYTES * whole, group),
    ]


def _of_replicas(step: TrainingStep, units: ModelUnits) -> list[Transfer]:
    """Return the all-reduce of gradients among the replicas, of all (DDP) or of a shard (HSDP)."""
    parts = step.shards
    group = Ranks(step.replicas, parts)
    if parts == 1:
        return [Transfer("DDP: all-reduce of gradients", "4 P", 1, MASTER_BYTES * units.elements(), group, passes=2)]
    payload, calls = MASTER_BYTES * units.elements(parts) // parts, len(units.blocks) + 1
    return [Transfer("HSDP: all-reduce of gradients", "4 P / (shard sequence)", calls, payload, group, passes=2)]
