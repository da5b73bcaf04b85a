"""Attention on a CPU, every kind versus torch's softmax in one run: `make bench`.

Refuses to time a library that is wrong: all identities are checked first. Writes
benchmarks/results/attention_cpu.json, from which the README's table is made.
"""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import about
from qkv.attention import check, kinds
from qkv.cli.inspection.bench import Row, run

RESULTS = Path(__file__).parent / "results" / "attention_cpu.json"
LENGTHS = [4096, 8192, 16384, 32768]


def main() -> None:
    """Check, time, write, print."""
    failed = [result for name in kinds for result in check(kinds[name].example(5)) if not result.ok]
    if failed:
        sys.exit("not timed, because it is wrong:\n" + "\n".join(map(str, failed)))
    passes = {"forward": False, "forward and backward": True}
    rows = {name: run(LENGTHS, None, backward=backward, device="cpu") for name, backward in passes.items()}
    result = {**about(), "command": "make bench", "setting": SETTING}
    result |= {name: [asdict(row) for row in found] for name, found in rows.items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


SETTING = "causal, 1 sequence, 8 heads, value_dim 64, float32; key_dim 64, taylor (order 2) 16; softmax is torch's SDPA"


def table(result: dict[str, Any]) -> str:
    """Markdown: how many times faster than softmax, forward, with growth and memory."""
    rows = [Row(**row) for row in result["forward"]]
    backward = {(row["kind"], row["tokens"]): row["ratio_to_softmax"] for row in result["forward and backward"]}
    lines = [
        "| kind | 4,096 tokens | 8,192 | 16,384 | 32,768 | with backward, 32,768 | growth | memory at 32,768 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = {row.tokens: row for row in rows if row.kind == kind}
        ratios = [f"{mine[n].ratio_to_softmax:.1f}x" for n in LENGTHS]
        last = mine[LENGTHS[-1]]
        growth = math.log(last.milliseconds / mine[4096].milliseconds) / math.log(LENGTHS[-1] / 4096)
        cells = [
            kind,
            *ratios,
            f"{backward[kind, LENGTHS[-1]]:.1f}x",
            f"n^{growth:.2f}",
            f"{last.peak_bytes >> 20} MiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
