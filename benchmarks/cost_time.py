"""Forecast times against measured ones: benchmarks/results/cost_time.json.

    OMP_NUM_THREADS=1 python -m benchmarks.cost_time

Each round calibrates again, then forecasts and times every module, so that a disturbance does not spoil one figure.
A row reports the median and the spread of its rounds. With one thread, processor time is measured (see
`qkv.profile.timing.timer`); with more threads, run it on an idle machine.
"""

import inspect
import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks import cost_time_modules
from benchmarks.cost_time_modules import (
    TimedModule,
    development,
    held_out,
    held_out_races,
    validation,
    validation_races,
)
from benchmarks.machine import about
from qkv.profile.timing.calibrate import calibrate
from qkv.profile.timing.forecast import Forecast, forecast
from qkv.profile.timing.rates import Rates
from qkv.profile.timing.time_crossover import LENGTHS, TimeCrossover, find_time_crossover, forecast_lengths

RESULTS = Path(__file__).parent / "results" / "cost_time.json"
ROUNDS = 3
BOUND = 0.35
SETS = {"development": development, "validation": validation, "held_out": held_out}
RACES = {"validation": validation_races, "held_out": held_out_races}


def main() -> None:
    """Calibrate, forecast, time, write the results and print the table."""
    torch.manual_seed(0)
    sets = {name: choose() for name, choose in SETS.items()}
    found: dict[str, dict[tuple[str, int], list[Forecast]]] = {name: {} for name in sets}
    crossed: dict[str, dict[str, list[TimeCrossover]]] = {name: {} for name in RACES}
    loads = []
    for _ in range(ROUNDS):
        rates = calibrate()
        for name, (modules, lengths) in sets.items():
            _run_round(modules, lengths, rates, found[name])
        for name, choose in RACES.items():
            for race in choose():
                first, second = (forecast_lengths(call, LENGTHS, rates) for call in race.calls())
                crossed[name].setdefault(race.name, []).append(find_time_crossover(first, second))
        loads.append(os.getloadavg()[0])
    result = {
        **about(),
        "command": f"OMP_NUM_THREADS={torch.get_num_threads()} python -m benchmarks.cost_time",
        "clock": "processor time" if torch.get_num_threads() == 1 else "wall clock",
        "load_average": loads,
        "sets": inspect.getdoc(cost_time_modules),
        **{name: summary([_row(*key, rounds) for key, rounds in rows.items()]) for name, rows in found.items()},
        "crossovers": {
            name: [_crossover(race, rounds) for race, rounds in found.items()] for name, found in crossed.items()
        },
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def _run_round(
    modules: list[TimedModule], lengths: tuple[int, ...], rates: Rates, found: dict[tuple[str, int], list[Forecast]]
) -> None:
    for module in modules:
        for n in lengths:
            found.setdefault((module.name, n), []).append(forecast(module.call, {"n": n}, rates))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors over all rows."""
    off = [abs(row["ratio"] - 1) for row in rows]
    return {
        "median_ratio": statistics.median(row["ratio"] for row in rows),
        "median_error": statistics.median(off),
        "largest_error": max(max(row["ratio"], 1 / row["ratio"]) for row in rows),
        "within_35_percent": sum(error <= BOUND for error in off),
        "of": len(rows),
        "rows": rows,
    }


def _row(name: str, n: int, rounds: list[Forecast]) -> dict[str, Any]:
    ratios = sorted(one.ratio for one in rounds)
    parts = rounds[0].parts
    return {
        "module": name,
        "n": n,
        "predicted_ms": 1e3 * statistics.median(one.predicted for one in rounds),
        "measured_ms": 1e3 * statistics.median(one.measured or 0.0 for one in rounds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "parts_ms": {category: 1e3 * seconds for category, seconds in parts.items()},
    }


def _crossover(name: str, rounds: list[TimeCrossover]) -> dict[str, Any]:
    predicted, measured = (_median_length([getattr(one, what) for one in rounds]) for what in ("predicted", "measured"))
    return {
        "race": name,
        "predicted_n": predicted,
        "measured_n": measured,
        "ratio": None if predicted is None or measured is None else predicted / measured,
        "rounds": [{"predicted": one.predicted, "measured": one.measured} for one in rounds],
    }


def _median_length(lengths: list[float | None]) -> float | None:
    found = statistics.median(math.inf if n is None else n for n in lengths)
    return None if math.isinf(found) else found


def table(result: dict[str, Any]) -> str:
    """Return Markdown: the held-out rows, then the crossovers."""
    lines = ["| module | n | predicted | measured | ratio | of the rounds |", "|---|---|---|---|---|---|"]
    for row in result["held_out"]["rows"]:
        times = f"{row['predicted_ms']:.3g} ms | {row['measured_ms']:.3g} ms"
        spread = f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}"
        lines.append(f"| {row['module']} | {row['n']} | {times} | {row['ratio']:.2f} | {spread} |")
    lines.append("")
    for name in SETS:
        found = result[name]
        lines.append(
            f"- {name.replace('_', ' ')}: median error {found['median_error']:.0%}, median ratio "
            f"{found['median_ratio']:.2f}, {found['within_35_percent']} of {found['of']} within 35 %, none off by more "
            f"than a factor of {found['largest_error']:.2f}"
        )
    lines += ["", "| overtakes softmax | predicted from n | measured from n | ratio |", "|---|---|---|---|"]
    for row in result["crossovers"]["held_out"]:
        cells = (f"not by {LENGTHS[-1]}" if row[n] is None else f"{row[n]:.0f}" for n in ("predicted_n", "measured_n"))
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"| {row['race']} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
