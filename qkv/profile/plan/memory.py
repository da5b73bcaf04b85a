"""Memory of one device in a training step, term by term."""

from dataclasses import dataclass

from qkv.cost.memory import OPTIMIZERS
from qkv.profile.plan.activations import Activations
from qkv.profile.plan.exchange import gathered_bytes
from qkv.profile.plan.request import TrainingStep
from qkv.train.parallel.units import ModelUnits

MASTER_BYTES = 4
"""Bytes of a parameter, its gradient and each value of its optimizer state."""
LOGIT_BYTES = 12
"""Bytes per logit at the peak of the loss: its log-softmax and two gradients, in float32 under autocast, too."""


@dataclass(frozen=True)
class Term:
    """A number, and the formula that gives it."""

    value: int
    formula: str


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device."""

    terms: dict[str, Term]
    """What is held with or without recomputation."""
    plain: Term
    """Activations saved for backward, by all layers."""
    recompute: Term
    """Activations with `train.recompute`: the inputs of blocks, and all of one block."""

    @property
    def states(self) -> int:
        """Bytes of parameters, gradients and optimizer state."""
        return sum(self.terms[name].value for name in ("parameters", "gradients", "optimizer"))

    @property
    def total(self) -> int:
        """Bytes without recomputation."""
        return sum(term.value for term in self.terms.values()) + self.plain.value

    @property
    def total_with_recompute(self) -> int:
        """Bytes with recomputation."""
        return sum(term.value for term in self.terms.values()) + self.recompute.value


def plan_memory(step: TrainingStep, units: ModelUnits, activations: Activations) -> MemoryPlan:
    """Return the terms of one device, the one with the largest shards."""
    parts = step.shards
    own = MASTER_BYTES * units.elements(parts) // parts
    values = OPTIMIZERS[step.optimizer]
    buffers = sum(b.nbytes for b in step.target.module.buffers())
    shared = " / (shard sequence)" if parts > 1 else ""
    terms = {
        "parameters": Term(own, f"4 P{shared}"),
        "gradients": Term(own, f"4 P{shared}"),
        "optimizer": Term(values * own, f"{values} * 4 P{shared}"),
        "EMA": Term(own + buffers, f"4 P{shared} + buffers"),
        "best weights": Term(own + buffers, f"4 P{shared} + buffers"),
        "buffers": Term(buffers, "as they are"),
        **_of_communication(step, units),
        **_of_autocast(step, activations),
        "logits": Term(LOGIT_BYTES * activations.outputs, f"{LOGIT_BYTES} B T V"),
    }
    if step.mesh.sequence > 1:
        terms["validation copy"] = Term(own, f"4 P{shared}: validation reads whole sequences")
    held = gathered_bytes(step)
    plain = activations.saved + sum(held)
    again = activations.recomputed + max(held, default=0)
    return MemoryPlan(
        {name: term for name, term in terms.items() if term.value},
        Term(plain, "saved by all layers, counted"),
        Term(again, "inputs of blocks + all of one block, counted"),
    )


def _of_communication(step: TrainingStep, units: ModelUnits) -> dict[str, Term]:
    """Return what DDP or FSDP2 holds beside the model."""
    if step.mesh.processes == 1:
        return {}
    if step.shards == 1:
        return {"DDP buckets": Term(MASTER_BYTES * units.elements(), "4 P: gradients, flat, for the all-reduce")}
    parts, low = step.shards, step.product_bytes
    root, block = MASTER_BYTES * units.root.elements(parts), units.largest_block(parts)
    gathered = Term(root + 2 * low * block, f"4 R + 2 * {low} L: the rest, this block and the next")
    whole = Term(root + (low + MASTER_BYTES) * block, f"4 R + ({low} + 4) L: the rest, a block and its copy in float32")
    if step.accumulation > 1:
        whole = Term(MASTER_BYTES * units.elements(), "4 P: whole until the last micro-batch")
    return {"gathered parameters": gathered, "whole gradients": whole}


def _of_autocast(step: TrainingStep, activations: Activations) -> dict[str, Term]:
    """Return the copies of weights that autocast keeps until the backward pass of their layer.

    FSDP2 gathers blocks in bfloat16, which then need no copy.
    """
    if step.shards == 1:
        return {"weights in bfloat16": Term(activations.weight_copies, "2 per value of a matrix, by autocast")}
    return {"weights in bfloat16": Term(activations.rest_copies, "2 per value of a matrix in R, by autocast")}
