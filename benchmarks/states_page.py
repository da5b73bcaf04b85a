"""The tables of docs/results.md on states and serving, from their result files.

python -m benchmarks.states_page       print them
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.states_streams import KINDS

RESULTS = Path(__file__).parent / "results"


def read(name: str) -> dict[str, Any]:
    """Return a result file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def streams_table(result: dict[str, Any]) -> str:
    """Return tokens per second of streams side by side."""
    lines = [
        "| kind | streams | tokens/s | one at a time | ratio | time to copy states |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        for name, found in result[kind]["rates"].items():
            count = int(name.removesuffix(" streams"))
            rates = f"{found['tokens_per_second']:,.0f} | {found['alone']['tokens_per_second']:,.0f}"
            lines.append(f"| `{kind}` | {count:,} | {rates} | {found['speedup']:.1f}x | {found['copying_share']:.1%} |")
    return "\n".join(lines)


def prefix_table(result: dict[str, Any]) -> str:
    """Return what a prefix cache is worth, by kind."""
    lines = [
        "| kind | hits | tokens reused | largest, MiB | ms to the first token, without | with | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, found in result["kinds"].items():
        times = found["milliseconds"]
        without = min(times["pieces"], times["whole"])
        lines.append(
            f"| `{kind}` | {found['hit_rate']:.1%} | {found['share_of_tokens_reused']:.1%} | "
            f"{found['largest'] / 2**20:.1f} | {without:.1f} | {times['cache']:.1f} | {found['speedup']:.1f}x |"
        )
    return "\n".join(lines)


def speculative_table(result: dict[str, Any]) -> str:
    """Return the accepted tokens per call of the model, by kind and draft."""
    records = result["greedy"]["float32"]
    drafts = list(next(iter(records.values()))["accepted per step"])
    lines = [f"| kind | {' | '.join(drafts)} |", "|---" * (1 + len(drafts)) + "|"]
    for kind, found in records.items():
        cells = " | ".join(f"{found['accepted per step'][draft]:.2f}" for draft in drafts)
        lines.append(f"| `{kind}` | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    print(streams_table(read("states_streams_cpu")), end="\n\n")
    print(prefix_table(read("states_prefix_cpu")), end="\n\n")
    print(speculative_table(read("states_speculative_cpu")))


if __name__ == "__main__":
    main()
