"""Forecasts of time beside the clock on shapes that were not calibrated: benchmarks/results/cost_time.json.

    OMP_NUM_THREADS=1 python -m benchmarks.cost_time

The rates are measured anew, then every module is forecast and timed, three rounds over all of them in turn, so that a
machine that is busy for a while disturbs no single one; the median of the rounds counts. Run it on a quiet machine.
"""

import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.cost_cases import SelfAttention, convolutional
from benchmarks.machine import about
from qkv.attention import Elu, Linear, Softmax, Taylor
from qkv.cost import Input
from qkv.cost.forecast import forecast
from qkv.cost.rates import calibrate
from qkv.cost.rehearse import Play
from qkv.layers import FeedForward, MultiHead

RESULTS = Path(__file__).parent / "results" / "cost_time.json"
LENGTHS = (48, 200, 700)
ROUNDS = 3
BOUND = 0.35


def modules() -> dict[str, tuple[nn.Module, str, dict[str, Any]]]:
    """Name -> module, input, options; no size of theirs was timed by itself."""
    causal = {"causal": True}
    return {
        "self-attention 100/36/25": (SelfAttention(100, 36, 25), "float[1,n,100]", {}),
        "multi-head 192/6, softmax": (MultiHead(192, 6, Softmax()), "float[2,n,192]", causal),
        "multi-head 96/6, softmax by definition": (
            MultiHead(96, 6, Softmax(backend="reference")),
            "float[1,n,96]",
            causal,
        ),
        "multi-head 96/6, linear": (MultiHead(96, 6, Linear()), "float[1,n,96]", causal),
        "multi-head 96/6, elu": (MultiHead(96, 6, Elu()), "float[1,n,96]", {}),
        "multi-head 96/6, taylor": (MultiHead(96, 6, Taylor()), "float[1,n,96]", causal),
        "encoder layer 256/8/1024": (nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), "float[1,n,256]", {}),
        "feed-forward 320/1280": (FeedForward(320, 1280), "float[1,n,320]", {}),
        "LSTM 80/160": (nn.LSTM(80, 160), "float[n,1,80]", {}),
        "convolutional net": (convolutional(pooled=True), "float[n,1,28,28]", {}),
    }


def main() -> None:
    """Calibrate, forecast, time, write, print."""
    torch.manual_seed(0)
    known, found = calibrate(), modules()
    pairs: dict[tuple[str, int], list[Any]] = {}
    for _ in range(ROUNDS):
        for name, (module, given, options) in found.items():
            for n in LENGTHS:
                fast = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)  # forecasts are of the operations, not of fused layers
                pairs.setdefault((name, n), []).append(
                    forecast(Play(module, (Input.parse(given),), options), {"n": n}, known)
                )
                torch.backends.mha.set_fastpath_enabled(fast)
    rows = [_row(name, n, timings) for (name, n), timings in pairs.items()]
    ratios = [row["ratio"] for row in rows]
    off = [abs(ratio - 1) for ratio in ratios]
    result = {
        **about(),
        "command": "python -m benchmarks.cost_time",
        "load_average": os.getloadavg()[0],
        "median_ratio": statistics.median(ratios),
        "median_error": statistics.median(off),
        "within_35_percent": sum(error <= BOUND for error in off),
        "of": len(rows),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    lines = ["| module | n | predicted | measured | ratio |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        cells = (
            row["module"],
            row["n"],
            f"{row['predicted_ms']:.3g} ms",
            f"{row['measured_ms']:.3g} ms",
            f"{row['ratio']:.2f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append(
        f"\nMedian ratio {result['median_ratio']:.2f}, median error {result['median_error']:.0%}; "
        f"{result['within_35_percent']} of {result['of']} within 35 %."
    )
    return "\n".join(lines)


def _row(name: str, n: int, timings: list[Any]) -> dict[str, Any]:
    measured = statistics.median(timing.measured for timing in timings)
    predicted = statistics.median(timing.predicted for timing in timings)
    return {
        "module": name,
        "n": n,
        "predicted_ms": 1e3 * predicted,
        "measured_ms": 1e3 * measured,
        "ratio": predicted / measured,
    }


if __name__ == "__main__":
    main()
