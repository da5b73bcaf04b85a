"""Multiplications and memory traffic of one device in a training step.

The backward pass has two products for each of the forward pass, one per operand. So its count is twice that of the
forward pass, where inputs need no gradient what torch runs on meta. All counts are those that the formula needs: masked
pairs and padding are left out, which fast kernels skip.
"""

from contextlib import suppress
from dataclasses import dataclass

from qkv.attention import Scored
from qkv.cost.counter import UncountedError
from qkv.cost.memory import OPTIMIZERS
from qkv.cost.meta_run import count_backward, count_forward
from qkv.profile.plan.activations import Activations
from qkv.profile.plan.exchange import heads_of, heads_shape
from qkv.profile.plan.memory import LOGIT_BYTES, MASTER_BYTES, Term
from qkv.profile.plan.request import TrainingStep
from qkv.train.parallel.units import ModelUnits, find_stacks


@dataclass(frozen=True)
class Work:
    """Multiplications of one step on the device that has most of them."""

    forward: int
    backward: int
    recompute: int
    """Multiplications of blocks that run again in the backward pass."""

    @property
    def total(self) -> int:
        """Multiplications without recomputation."""
        return self.forward + self.backward


def plan_work(step: TrainingStep) -> Work:
    """Return the multiplications of all micro-batches of one device."""
    forward, blocks = _declared(step) if step.call.declares_cost else _counted(step)
    times = step.accumulation
    backward = 2 * forward
    if any(given.dtype.is_floating_point for given in step.target.inputs):
        with suppress(UncountedError):
            backward = min(backward, count_backward(step.call, step.sizes, input_gradients=False))
    return Work(times * forward, times * backward, times * blocks)


def plan_moved(step: TrainingStep, units: ModelUnits, activations: Activations) -> dict[str, Term]:
    """Return bytes that go through the memory of one device, each tensor once per use, on the lowest assumptions."""
    parts, times = step.shards, step.accumulation
    values = OPTIMIZERS[step.optimizer]
    own = MASTER_BYTES * units.elements(parts) // parts
    each = 3 + 2 * values
    terms = {
        "weights": Term(2 * times * step.product_bytes * units.elements(), f"2 * {step.product_bytes} P"),
        "gradients": Term(times * MASTER_BYTES * units.elements(), "4 P, written"),
        "optimizer": Term(each * own, f"{each} * 4 P / (shard sequence)"),
        "activations": Term(2 * times * activations.saved, "2 * saved for backward"),
        "logits": Term(2 * times * LOGIT_BYTES * activations.outputs, "2 * logits"),
    }
    settings = step.target.settings
    if settings is not None and settings.ema_decay:
        terms["EMA"] = Term(3 * own, "3 * 4 P / (shard sequence)")
    return terms


def _declared(step: TrainingStep) -> tuple[int, int]:
    """Return the multiplications of a forward pass, and those of its blocks, by the declared cost."""
    cost = step.call.declared_cost(step.sizes, step.product_bytes)
    least = min(
        sum(cost.needed.values()), sum(cost.executed.values())
    )  # a short linear kind runs less than its formula
    later = _later_parts(step)
    paths = tuple(f"{stack.path}." for stack in find_stacks(step.target.module))
    blocks = sum(count for name, count in cost.needed.items() if name.startswith(paths)) if paths else 0
    return least + later, min(blocks, least) + later


def _later_parts(step: TrainingStep) -> int:
    """Return the multiplications of the last part of a sequence with the keys of earlier parts, softmax kinds only."""
    parts = step.mesh.sequence
    if parts == 1:
        return 0
    (tokens,) = step.sizes.values()
    found = 0
    for layer in heads_of(step):
        if isinstance(layer.attention, Scored):
            shapes = (heads_shape(layer, step.batch_per_device, tokens, n, 4) for n in (parts * tokens, tokens))
            last, first = (sum(layer.attention.cost(shape).needed.values()) for shape in shapes)
            found += last - first
    return found


def _counted(step: TrainingStep) -> tuple[int, int]:
    """Return the same for a module that declares no cost: it runs on meta."""
    counting = count_forward(step.call, step.sizes)
    if counting.unknown:
        operations = ", ".join(sorted(counting.unknown))
        raise ValueError(f"{step.target.label} runs operations of unknown cost, so there is no plan: {operations}")
    paths = tuple(f"{stack.path}." for stack in find_stacks(step.target.module))
    inside = {path: n - counting.causal_excess_doubled[path] // 2 for path, n in counting.by_module.items()}
    return counting.needed, sum(n for path, n in inside.items() if path.startswith(paths)) if paths else 0
