"""The tables of `qkv cost --gpu`: memory, bytes sent, and the shortest time of a step."""

from typing import TYPE_CHECKING

from qkv.cli.shared.console import console, format_count
from qkv.cli.tables.layout import print_rows
from qkv.cli.tables.units import format_amount, format_bytes

if TYPE_CHECKING:
    from qkv.profile.plan.plan import StepTime, TrainingPlan

SYMBOLS = "P parameters (padded to equal shards), R outside the blocks, L of the largest block, V outputs per token"
FLOOR = "the floor is the longest of compute, memory and communication: all three can happen at once"


def print_plan_tables(plan: "TrainingPlan") -> None:
    """Print the request, then a table for each part of the plan, then the answer in a sentence."""
    _print_head(plan)
    _print_memory(plan)
    _print_traffic(plan)
    _print_times(plan)
    for recompute in (False, True):
        console().print(_conclusion(plan, recompute=recompute), markup=False, soft_wrap=True)


def _print_head(plan: "TrainingPlan") -> None:
    step, gpu, units = plan.step, plan.cluster.gpu, plan.units
    screen = console()
    sizes = ", ".join(f"{name} = {size * step.mesh.sequence:,}" for name, size in step.sizes.items())
    examples = f"batch {step.batch:,}, {step.batch_per_device:,} per device"
    if step.accumulation > 1:
        examples += f" in each of {step.accumulation} micro-batches"
    screen.print(f"[bold]{step.target.label}[/], {sizes or 'fixed sizes'}, {examples}", highlight=False)
    if step.target.note:
        screen.print(step.target.note, markup=False, style="dim")
    screen.print(
        f"mesh {step.mesh}: {step.mesh.processes:,} x {gpu.name}, {plan.cluster.node} per node, "
        f"{plan.cluster.network:g} Gbit/s each; {step.precision}, {step.optimizer}",
        markup=False,
    )
    parts = f"P = {units.elements():,}, R = {units.root.elements():,}, L = {units.largest_block():,}"
    split = f", T = {', '.join(f'{size:,}' for size in step.sizes.values())} per device" if step.sizes else ""
    screen.print(f"{parts}, B = {step.batch_per_device:,}{split}, Q = {step.mesh.sequence}", markup=False)
    screen.print(SYMBOLS, style="dim", markup=False)


def _print_memory(plan: "TrainingPlan") -> None:
    memory, capacity = plan.memory, plan.cluster.gpu.memory
    rows = [(name, *_bytes(term.value), term.formula) for name, term in memory.terms.items()]
    rows += [
        ("activations", *_bytes(memory.plain.value), memory.plain.formula),
        ("activations, recompute", *_bytes(memory.recompute.value), memory.recompute.formula),
        ("together", *_bytes(memory.total), f"{memory.total / capacity:.1%} of {format_bytes(capacity)}"),
        (
            "together, recompute",
            *_bytes(memory.total_with_recompute),
            f"{memory.total_with_recompute / capacity:.1%} of {format_bytes(capacity)}",
        ),
    ]
    print_rows(("memory per device", "bytes", "about", "formula"), rows)


def _print_traffic(plan: "TrainingPlan") -> None:
    if not plan.traffic:
        console().print("one device: nothing is sent")
        return
    rows = [
        (
            transfer.name,
            f"{transfer.calls:,}",
            f"{transfer.group.size:,} on {transfer.group.nodes(plan.cluster.node):,}",
            *_bytes(transfer.sent),
            _seconds(plan.seconds_of(transfer)),
            ("2 " if transfer.passes == 2 else "") + f"(n - 1) / n * ({transfer.formula})",
        )
        for transfer in plan.traffic
    ]
    headings = ("sent and received per device", "calls", "n on nodes", "bytes", "about", "at least", "formula")
    print_rows(headings, rows)


def _print_times(plan: "TrainingPlan") -> None:
    work = plan.work
    rows = [
        ("forward", *_amounts(work.forward), "exact, as `qkv cost` counts what is needed"),
        ("backward", *_amounts(work.backward), "two products for each of the forward pass"),
        ("forward again, recompute", *_amounts(work.recompute), "the blocks"),
    ]
    print_rows(("multiplications per device", "exact", "about", "note"), rows)
    moved = [(name, *_bytes(term.value), term.formula) for name, term in plan.moved.items()]
    moved.append(("recompute adds", *_bytes(plan.recompute_moved), "weights again, inputs of blocks"))
    print_rows(("through the memory of a device", "bytes", "about", "formula"), moved)
    gpu = plan.cluster.gpu
    times = [("data sheet", plan.time(recompute=again), again) for again in (False, True)]
    measured = [("measured rates", plan.measured_time(recompute=again), again) for again in (False, True)]
    floors = [_time_row(plan, name, time, again) for name, time, again in (*times, *measured) if time is not None]
    rate = format_amount(round(gpu.rate(plan.step.precision)), "FLOP/s")
    title = f"{gpu.name}: {rate}, {gpu.bandwidth / 1e12:g} TB/s, {gpu.link / 1e9:g} GB/s to its node ({gpu.source})"
    headings = ("at least", "compute", "memory", "communication", "floor", "bottleneck", "tokens/s")
    print_rows(headings, floors, title=title)
    console().print(FLOOR, style="dim")


def _time_row(plan: "TrainingPlan", name: str, time: "StepTime", recompute: bool) -> tuple[str, ...]:
    waits = (time.compute, time.memory, time.communication, time.floor)
    tokens = plan.step.tokens
    speed = "-" if tokens is None else f"{tokens / time.floor:,.0f}"
    return (f"{name}, recompute" if recompute else name, *map(_seconds, waits), time.bottleneck, speed)


def _conclusion(plan: "TrainingPlan", *, recompute: bool) -> str:
    total = plan.memory.total_with_recompute if recompute else plan.memory.total
    verb = "fits" if plan.fits(recompute=recompute) else "does not fit"
    how = "with recompute" if recompute else "without recompute"
    time, step = plan.time(recompute=recompute), plan.step
    speed = (
        f"{step.batch / time.floor:,.3g} examples/s"
        if step.tokens is None
        else f"{step.tokens / time.floor:,.0f} tokens/s"
    )
    return (
        f"{how} it {verb}: {format_bytes(total)} of {format_bytes(plan.cluster.gpu.memory)}; "
        f"at least {_seconds(time.floor)} per step by {time.bottleneck}, at most {speed}"
    )


def _bytes(value: int) -> tuple[str, str]:
    return format_count(value), format_bytes(value)


def _amounts(value: int) -> tuple[str, str]:
    return format_count(value), format_amount(value)


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 or not value else f"{1e3 * value:.3g} ms"
