"""The plan of a training step on a mesh of GPUs: does it fit, what does it send, and how long does it take at least."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qkv.cost.meta_run import DataDependentError, ForwardError, count_forward
from qkv.cost.report import MAX_REAL_BYTES
from qkv.profile.plan.activations import Activations, count_activations
from qkv.profile.plan.gpus import GB, Gpu
from qkv.profile.plan.memory import MemoryPlan, plan_memory
from qkv.profile.plan.request import TrainingStep
from qkv.profile.plan.traffic import Transfer, plan_traffic
from qkv.profile.plan.work import Work, plan_moved, plan_work
from qkv.train.parallel.units import ModelUnits, find_units

NETWORK = 400
"""Gbit/s of network per GPU, if nothing is said: one card of a usual node of eight."""
LIMITS = ("compute", "memory", "communication")
"""What a step waits for; each has a time, and the longest one is the floor."""


@dataclass(frozen=True)
class Cluster:
    """GPUs and what connects them."""

    gpu: Gpu
    node: int
    """GPUs per node."""
    network: float
    """Gbit/s per GPU."""

    def __post_init__(self) -> None:
        if self.node < 1:
            raise ValueError(f"node={self.node} must be at least 1: the number of GPUs of a node")
        if not self.network > 0:
            raise ValueError(f"network={self.network:g} must be above 0, in Gbit/s per GPU")

    @property
    def network_bytes(self) -> float:
        """Bytes/s of the network per GPU."""
        return self.network * GB / 8


@dataclass(frozen=True)
class StepTime:
    """Seconds that a step takes at least, by what it waits for; all three can happen at once."""

    compute: float
    memory: float
    communication: float

    @property
    def floor(self) -> float:
        """Seconds of the slowest."""
        return max(self.compute, self.memory, self.communication)

    @property
    def bottleneck(self) -> str:
        """Name of the slowest."""
        return max(LIMITS, key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class TrainingPlan:
    """What a step needs on each device."""

    step: TrainingStep
    cluster: Cluster
    units: ModelUnits
    activations: Activations
    memory: MemoryPlan
    traffic: list[Transfer]
    work: Work
    moved: Mapping[str, Any]
    """Name -> term: bytes through the memory of a device, without recomputation."""

    @property
    def recompute_moved(self) -> int:
        """Bytes through the memory that recomputation adds: weights once more, and the inputs of blocks."""
        again = self.step.product_bytes * self.units.elements() + 2 * self.activations.block_inputs
        return self.step.accumulation * again

    def fits(self, *, recompute: bool) -> bool:
        """Return whether the memory of the GPU is enough."""
        needed = self.memory.total_with_recompute if recompute else self.memory.total
        return needed <= self.cluster.gpu.memory

    def transfers(self, *, recompute: bool) -> list[Transfer]:
        """Return the communication of a step."""
        return [transfer for transfer in self.traffic if recompute or not transfer.with_recompute]

    def time(self, *, recompute: bool) -> StepTime:
        """Return the shortest time by the data sheet of the GPU."""
        gpu = self.cluster.gpu
        return self._time(gpu.rate(self.step.precision), gpu.bandwidth, recompute=recompute)

    def measured_time(self, *, recompute: bool) -> StepTime | None:
        """Return the shortest time at the highest measured rates; None: there are none in this precision."""
        ceilings = self.cluster.gpu.measured
        if ceilings is None or self.step.precision != "bfloat16":
            return None
        return self._time(ceilings.bfloat16[1], ceilings.bandwidth[1], recompute=recompute)

    def _time(self, rate: float, bandwidth: float, *, recompute: bool) -> StepTime:
        multiplications = self.work.total + (self.work.recompute if recompute else 0)
        moved = sum(term.value for term in self.moved.values()) + (self.recompute_moved if recompute else 0)
        waits = (self.seconds_of(transfer) for transfer in self.transfers(recompute=recompute))
        return StepTime(2 * multiplications / rate, moved / bandwidth, sum(waits))

    def seconds_of(self, transfer: Transfer) -> float:
        """Return the shortest time of a transfer: on the link of a node or on the network, which work at once."""
        cluster = self.cluster
        network = transfer.network_seconds(cluster.node, cluster.network_bytes)
        return max(transfer.link_seconds(cluster.gpu, cluster.node), network)


def make_plan(step: TrainingStep, gpu: Gpu, *, node: int | None = None, network: float | None = None) -> TrainingPlan:
    """Return the plan of a step on GPUs in nodes of `node`, with `network` Gbit/s each."""
    step = _runnable(step)
    units = find_units(step.target.module)
    activations = count_activations(step.call, step.sizes, step.precision)
    return TrainingPlan(
        step=step,
        cluster=Cluster(gpu, gpu.node if node is None else node, NETWORK if network is None else network),
        units=units,
        activations=activations,
        memory=plan_memory(step, units, activations),
        traffic=plan_traffic(step, units),
        work=plan_work(step),
        moved=plan_moved(step, units, activations),
    )


def _runnable(step: TrainingStep) -> TrainingStep:
    """Return the step, run on the CPU if the module reads values of tensors; raise if its forward pass fails."""
    short = {name: min(size, 16) for name, size in step.sizes.items()}
    try:
        count_forward(step.call, short)
    except DataDependentError as error:
        if sum(p.nbytes for p in step.target.module.parameters()) > MAX_REAL_BYTES:
            raise ForwardError(step.call, step.sizes, error) from error
        return replace(step, real_weights=True)
    return step
