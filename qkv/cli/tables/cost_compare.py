"""`qkv cost --compare`: attention kinds beside each other, where they cross, and a picture."""

from dataclasses import asdict, replace
from itertools import permutations
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, print_json

if TYPE_CHECKING:
    from qkv.cost import Quantity, Shape
    from qkv.profile.attention_kinds import KindCost, KindCrossover
    from qkv.profile.timing.forecast import Forecast


def compare_kinds(kinds: str, shape: "Shape", plot: Path, *, time: bool, json: bool) -> None:
    """Formulas, crossovers, a plot; with `time` also where the clock says that they cross."""
    from qkv.profile.attention_kinds import compare_kinds, find_kind_crossovers, split_kinds
    from qkv.storage import write_atomic

    names = split_kinds(kinds)
    if len(names) < 2:
        raise ValueError(f"--compare {kinds!r}: expected at least two kinds, such as softmax,linear,taylor")
    rivals = compare_kinds(names, shape)
    crossed = find_kind_crossovers(rivals)
    write_atomic(plot, draw(rivals, shape).encode())
    timings = _record_timings(_timings(rivals, shape), shape.queries) if time else {}
    if json:
        print_json(_record(rivals, crossed, shape) | timings | {"plot": str(plot)})
        return
    _print(rivals, crossed, shape)
    if timings:
        _print_timings(timings, shape.queries)
    console().print(f"picture: {plot}", soft_wrap=True)


def draw(rivals: "list[KindCost]", shape: "Shape") -> str:
    """Multiplications against length, both in ratios."""
    from qkv.draw import Axis, Series, line_chart

    lengths = [2**power for power in range(4, max(shape.queries, 16384).bit_length())]
    series = [
        Series(
            rival.kind,
            [
                (float(n), float(sum(rival.mechanism.cost(replace(shape, queries=n, keys=n)).needed.values())))
                for n in lengths
            ],
        )
        for rival in rivals
    ]
    title = f"multiplications needed, key_dim {shape.key_dim}, value_dim {shape.value_dim}, {_heads(shape)}"
    return line_chart(series, title, Axis("tokens", log=True), Axis("multiplications", log=True))


def _heads(shape: "Shape") -> str:
    return "1 head" if shape.heads == 1 else f"{shape.heads} heads"


def _print(rivals: "list[KindCost]", crossed: "list[KindCrossover]", shape: "Shape") -> None:
    from rich.table import Table

    from qkv.cost import CONVENTION, format_formula

    what = f"n = {shape.queries:,}, {_heads(shape)}, key_dim {shape.key_dim}, value_dim {shape.value_dim}"
    table = Table("kind", "needed", "at n", "executed", "cache", "bytes", title=what, title_justify="left")
    for rival in rivals:
        needed, cache = rival.needed, rival.cache
        table.add_row(
            rival.kind,
            f"{format_formula(needed.formula)} {needed.holds}".strip(),
            f"{needed.value:,}",
            f"{rival.executed:,}",
            f"{format_formula(cache.formula)} {cache.holds}".strip(),
            f"{cache.value:,}",
        )
    console().print(table)
    meeting = Table("crossover", "of", "at n", "", title="where they cost the same, exactly", title_justify="left")
    for one in crossed:
        exact = ", ".join([*map(str, one.lengths), *_stretches(one)]) or "never"
        meeting.add_row(
            f"{one.first} = {one.second}", one.quantity, exact, ", ".join(f"{float(x):,.1f}" for x in one.lengths)
        )
    console().print(meeting)
    for line in CONVENTION[:3]:
        console().print(f"- {line}", style="dim", soft_wrap=True, markup=False)


def _stretches(one: "KindCrossover") -> list[str]:
    """The lengths all along which two kinds cost the same, in words."""
    if one.crossovers.always:
        return ["always"]
    return [f"{start} to {end}" if end else f"from {start} on" for start, end in one.crossovers.intervals]


def _quantity(quantity: "Quantity") -> dict[str, Any]:
    """`holds` says where the formula does; empty: at every length."""
    from qkv.cost import format_formula

    return {"formula": format_formula(quantity.formula), "value": quantity.value, "holds": quantity.holds}


def _record(rivals: "list[KindCost]", crossed: "list[KindCrossover]", shape: "Shape") -> dict[str, Any]:
    from qkv.cost import CONVENTION

    return {
        "convention": list(CONVENTION),
        "symbols": {"n": shape.queries, "heads": shape.heads, "d_k": shape.key_dim, "d_v": shape.value_dim},
        "kinds": [
            {
                "kind": rival.kind,
                "multiplications": _quantity(rival.needed),
                "executed": rival.executed,
                "cache": _quantity(rival.cache),
            }
            for rival in rivals
        ],
        "crossovers": [
            {
                "first": one.first,
                "second": one.second,
                "of": one.quantity,
                "exact": [str(x) for x in one.lengths],
                "n": [float(x) for x in one.lengths],
                "stretches": [list(stretch) for stretch in one.crossovers.intervals],
            }
            for one in crossed
        ],
    }


def _timings(rivals: "list[KindCost]", shape: "Shape") -> "dict[str, dict[int, Forecast]]":
    """Kind -> length -> time, up to the length asked for."""
    from qkv.cost import Input
    from qkv.cost.meta_run import ModuleCall
    from qkv.profile.timing.time_crossover import LENGTHS, forecast_lengths

    key_heads = shape.key_rows // shape.batch
    dims = (shape.heads, shape.key_dim), (key_heads, shape.key_dim), (key_heads, shape.value_dim)
    inputs = tuple(Input.parse(f"float[1,{heads},n,{dim}]") for heads, dim in dims)
    lengths = [*(n for n in LENGTHS if n < shape.queries), shape.queries]
    return {rival.kind: forecast_lengths(ModuleCall(rival.mechanism, inputs, {"causal": shape.causal}), lengths) for rival in rivals}


def _record_timings(timings: "dict[str, dict[int, Forecast]]", n: int) -> dict[str, Any]:
    from qkv.profile.timing.time_crossover import find_time_crossover

    kinds, crossed = [], []
    for kind, times in timings.items():
        at = times[n]
        record = {"predicted_seconds": at.predicted, "measured_seconds": at.measured, "ratio": at.ratio}
        kinds.append({"kind": kind, **record})
    for first, second in permutations(timings, 2):
        found = find_time_crossover(timings[first], timings[second])
        if found.predicted is not None or found.measured is not None:
            crossed.append({"first": first, "second": second, **asdict(found), "ratio": found.ratio})
    return {"time": kinds, "time_crossovers": crossed}


def _print_timings(record: dict[str, Any], n: int) -> None:
    from rich.table import Table

    title = f"time on this CPU, n = {n:,}"
    table = Table("kind", "predicted", "measured", "ratio", title=title, title_justify="left")
    for row in record["time"]:
        cells = (f"{1e3 * row[name]:.3g} ms" for name in ("predicted_seconds", "measured_seconds"))
        table.add_row(row["kind"], *cells, f"{row['ratio']:.2f}")
    console().print(table)
    meeting = Table(
        "faster", "predicted", "measured", "ratio", title="from which n on, by the clock", title_justify="left"
    )
    for row in record["time_crossovers"]:
        cells = (f"not by {n:,}" if row[name] is None else f"{row[name]:,.0f}" for name in ("predicted", "measured"))
        ratio = "" if isnan(row["ratio"]) else f"{row['ratio']:.2f}"
        meeting.add_row(f"{row['second']} than {row['first']}", *cells, ratio)
    console().print(meeting)
