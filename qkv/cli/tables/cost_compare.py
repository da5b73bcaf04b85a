"""`qkv cost --compare`: a table of attention kinds, their crossovers, and a chart."""

from dataclasses import asdict
from itertools import permutations
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, format_count, print_json
from qkv.cli.tables.cost import EXECUTED_BELOW_NEEDED, print_calibration_age
from qkv.cli.tables.layout import print_rows
from qkv.cli.tables.units import format_amount, format_bytes

if TYPE_CHECKING:
    from qkv.cost import Quantity, Shape
    from qkv.profile.attention_kinds import KindCost, KindCrossover
    from qkv.profile.timing.forecast import Forecast


def print_kinds(kinds: str, shape: "Shape", plot: Path, *, time: bool, json: bool) -> None:
    """Print formulas and crossovers and write a chart; `time` adds predicted and measured times."""
    from qkv.profile.attention_kinds import compare_kinds, find_kind_crossovers
    from qkv.records import split_outside_brackets
    from qkv.storage import write_atomic

    names = [name for name in split_outside_brackets(kinds, ",") if name]
    if len(names) < 2:
        raise ValueError(f"--compare {kinds!r}: expected at least two kinds, such as softmax,linear,taylor")
    costs = compare_kinds(names, shape)
    crossovers = find_kind_crossovers(costs)
    write_atomic(plot, draw(costs, shape).encode())
    timings = _record_timings(_forecast_kinds(costs, shape), shape.queries) if time else {}
    if json:
        print_json(_record(costs, crossovers, shape) | timings | {"plot": str(plot)})
        return
    _print_costs(costs, shape)
    _print_crossovers(crossovers)
    if timings:
        _print_timings(timings, shape.queries)
    console().print(f"picture: {plot}", soft_wrap=True)


def draw(costs: "list[KindCost]", shape: "Shape") -> str:
    """Return a log-log chart of multiplications against length."""
    from qkv.draw import Axis, Series, line_chart

    lengths = [2**power for power in range(4, max(shape.queries, 16384).bit_length())]
    series = [
        Series(cost.kind, [(float(n), float(cost.cost_functions["needed"](n))) for n in lengths]) for cost in costs
    ]
    title = f"multiplications needed, key_dim {shape.key_dim}, value_dim {shape.value_dim}, {_heads(shape)}"
    return line_chart(series, title, Axis("tokens", log=True), Axis("multiplications", log=True))


def _heads(shape: "Shape") -> str:
    return "1 head" if shape.heads == 1 else f"{shape.heads} heads"


def _print_costs(costs: "list[KindCost]", shape: "Shape") -> None:
    """Print three rows per kind, and explain a kind that executes less than is needed."""
    title = f"n = {shape.queries:,}, {_heads(shape)}, key_dim {shape.key_dim}, value_dim {shape.value_dim}"
    rows = []
    for cost in costs:
        needed, cache = cost.needed.value, cost.cache.value
        rows.append((cost.kind, "needed", format_count(needed), format_amount(needed), _formula(cost.needed)))
        rows.append(("", "executed", format_count(cost.executed), format_amount(cost.executed), ""))
        rows.append(("", "cache bytes", format_count(cache), format_bytes(cache), _formula(cost.cache)))
    headings = ("kind", "quantity", f"at n = {shape.queries:,}", "about", "formula")
    print_rows(headings, rows, title=title)
    if any(cost.executed < (cost.needed.value or 0) for cost in costs):
        console().print(EXECUTED_BELOW_NEEDED, markup=False)


def _formula(quantity: "Quantity") -> str:
    """Return the formula and, unless it is verified at all lengths, where it holds."""
    from qkv.cost import format_formula
    from qkv.cost.formula_range import format_holds
    from qkv.profile.attention_kinds import MAX_COMPARED_LENGTH

    if quantity.holds is None:
        return quantity.note
    everywhere = quantity.holds == {"n": (1, MAX_COMPARED_LENGTH)}
    return format_formula(quantity.formula) + ("" if everywhere else f"\nfor {format_holds(quantity.holds)}")


def _print_crossovers(crossovers: "list[KindCrossover]") -> None:
    from qkv.profile.attention_kinds import MAX_COMPARED_LENGTH

    rows = []
    for one in crossovers:
        exact = ", ".join([*map(str, one.lengths), *_describe_intervals(one)]) or "never"
        approximate = ", ".join(f"{float(length):,.1f}" for length in one.lengths) or "-"
        rows.append((f"{one.first} = {one.second}", one.quantity, approximate, exact))
    print_rows(("kinds", "cost", "about n", "exactly"), rows, title="lengths n at which two kinds cost the same")
    screen = console()
    screen.print(
        f"- formulas are verified for n = 1 to {MAX_COMPARED_LENGTH:,}, unless a row says otherwise", style="dim"
    )
    screen.print("- needed and executed are multiplications in matrix products; FLOPs are twice as many", style="dim")


def _describe_intervals(one: "KindCrossover") -> list[str]:
    """Return the intervals of lengths over which two kinds cost the same."""
    if one.crossovers.always:
        return ["always"]
    return [f"{start} to {end}" if end else f"{start} and above" for start, end in one.crossovers.intervals]


def _record(costs: "list[KindCost]", crossovers: "list[KindCrossover]", shape: "Shape") -> dict[str, Any]:
    from qkv.cost import CONVENTION
    from qkv.cost.to_json import quantity_to_record

    return {
        "convention": list(CONVENTION),
        "symbols": {"n": shape.queries, "heads": shape.heads, "d_k": shape.key_dim, "d_v": shape.value_dim},
        "kinds": [
            {
                "kind": cost.kind,
                "multiplications": quantity_to_record(cost.needed),
                "executed": cost.executed,
                "cache": quantity_to_record(cost.cache),
            }
            for cost in costs
        ],
        "crossovers": [
            {
                "first": one.first,
                "second": one.second,
                "of": one.quantity,
                "exact": [str(x) for x in one.lengths],
                "n": [float(x) for x in one.lengths],
                "intervals": [list(interval) for interval in one.crossovers.intervals],
            }
            for one in crossovers
        ],
    }


def _forecast_kinds(costs: "list[KindCost]", shape: "Shape") -> "dict[str, dict[int, Forecast]]":
    """Return kind -> length -> forecast, up to the length of `shape`."""
    from qkv.cost import Input
    from qkv.cost.meta_run import ModuleCall
    from qkv.profile.timing.time_crossover import LENGTHS, forecast_lengths

    key_heads = shape.key_rows // shape.batch
    dims = (shape.heads, shape.key_dim), (key_heads, shape.key_dim), (key_heads, shape.value_dim)
    inputs = tuple(Input.parse(f"float[1,{heads},n,{dim}]") for heads, dim in dims)
    lengths = [*(n for n in LENGTHS if n < shape.queries), shape.queries]
    calls = {cost.kind: ModuleCall(cost.mechanism, inputs, {"causal": shape.causal}) for cost in costs}
    return {kind: forecast_lengths(call, lengths) for kind, call in calls.items()}


def _record_timings(timings: "dict[str, dict[int, Forecast]]", n: int) -> dict[str, Any]:
    from qkv.profile.timing.time_crossover import find_time_crossover

    kinds, crossovers = [], []
    for kind, forecasts in timings.items():
        at = forecasts[n]
        record = {"predicted_seconds": at.predicted, "measured_seconds": at.measured, "ratio": at.ratio}
        kinds.append({"kind": kind, **record})
    for first, second in permutations(timings, 2):
        found = find_time_crossover(timings[first], timings[second])
        if found.predicted is not None or found.measured is not None:
            crossovers.append({"first": first, "second": second, **asdict(found), "ratio": found.ratio})
    return {"time": kinds, "time_crossovers": crossovers}


def _print_timings(record: dict[str, Any], n: int) -> None:
    rows = []
    for row in record["time"]:
        cells = (f"{1e3 * row[name]:.3g} ms" for name in ("predicted_seconds", "measured_seconds"))
        rows.append((row["kind"], *cells, f"{row['ratio']:.2f}"))
    print_rows(("kind", "predicted", "measured", "ratio"), rows, title=f"time on this CPU, n = {n:,}")
    rows = []
    for row in record["time_crossovers"]:
        cells = (f"not by {n:,}" if row[name] is None else f"{row[name]:,.0f}" for name in ("predicted", "measured"))
        ratio = "" if isnan(row["ratio"]) else f"{row['ratio']:.2f}"
        rows.append((f"{row['second']} than {row['first']}", *cells, ratio))
    print_rows(("faster", "predicted", "measured", "ratio"), rows, title="n from which one is faster, by time")
    print_calibration_age()
