"""A plan as JSON data with stable keys."""

from dataclasses import asdict
from typing import Any

from qkv.profile.plan.plan import StepTime, TrainingPlan


def plan_to_record(plan: TrainingPlan) -> dict[str, Any]:
    """Return the whole plan; all numbers of bytes and multiplications are integers of one device."""
    step, cluster, memory = plan.step, plan.cluster, plan.memory
    per_device = {"examples": step.batch_per_device, **step.sizes}
    sizes = {name: size * step.mesh.sequence for name, size in step.sizes.items()}
    return {
        "spec": step.target.label,
        "note": step.target.note,
        "mesh": asdict(step.mesh),
        "processes": step.mesh.processes,
        "gpu": asdict(cluster.gpu),
        "node": cluster.node,
        "network_gbit_per_second": cluster.network,
        "precision": step.precision,
        "optimizer": step.optimizer,
        "batch": step.batch,
        "accumulation_steps": step.accumulation,
        "sizes": sizes,
        "per_device": per_device,
        "parameters": {
            "all": plan.units.elements(),
            "rest": plan.units.root.elements(),
            "largest_block": plan.units.largest_block(),
            "blocks": len(plan.units.blocks),
        },
        "memory": {
            "terms": {name: {"bytes": term.value, "formula": term.formula} for name, term in memory.terms.items()},
            "capacity_bytes": cluster.gpu.memory,
        },
        "traffic": [_transfer_to_record(plan, transfer) for transfer in plan.traffic],
        "multiplications": asdict(plan.work),
        "memory_traffic": {name: {"bytes": one.value, "formula": one.formula} for name, one in plan.moved.items()},
        "recompute": {str(again).lower(): _variant(plan, again) for again in (False, True)},
    }


def _transfer_to_record(plan: TrainingPlan, transfer: Any) -> dict[str, Any]:
    return {
        "name": transfer.name,
        "formula": transfer.formula,
        "calls": transfer.calls,
        "processes": transfer.group.size,
        "nodes": transfer.group.nodes(plan.cluster.node),
        "bytes_sent": transfer.sent,
        "bytes_received": transfer.sent,
        "seconds": plan.seconds_of(transfer),
        "only_with_recompute": transfer.with_recompute,
    }


def _variant(plan: TrainingPlan, recompute: bool) -> dict[str, Any]:
    memory, time = plan.memory, plan.time(recompute=recompute)
    sent = sum(transfer.sent for transfer in plan.transfers(recompute=recompute))
    return {
        "activation_bytes": (memory.recompute if recompute else memory.plain).value,
        "total_bytes": memory.total_with_recompute if recompute else memory.total,
        "fits": plan.fits(recompute=recompute),
        "bytes_sent": sent,
        "bytes_received": sent,
        "time": _time_to_record(plan, time),
        "time_at_measured_rates": _time_to_record(plan, plan.measured_time(recompute=recompute)),
    }


def _time_to_record(plan: TrainingPlan, time: StepTime | None) -> dict[str, Any] | None:
    if time is None:
        return None
    tokens = plan.step.tokens
    return {
        "compute_seconds": time.compute,
        "memory_seconds": time.memory,
        "communication_seconds": time.communication,
        "floor_seconds": time.floor,
        "bottleneck": time.bottleneck,
        "examples_per_second": plan.step.batch / time.floor,
        "tokens_per_second": None if tokens is None else tokens / time.floor,
    }
