"""Run every hostile file of `tests/hostile` through the command line: is it refused in words, in time, in memory?

    python -m benchmarks.hostile_files [--out FILE] [--only TEXT]

A command runs in a forked process that has torch already. So its seconds do not include imports, and its bytes are
the growth of the resident memory.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import about
from tests.hostile.cases import CASES, measure, problem
from tests.hostile.measure import MAX_BYTES, MAX_SECONDS

RESULT = Path(__file__).parent / "results" / "hostile_files.json"


def main() -> None:
    """Print each case that is not refused, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--only", default="", help="run the cases whose name has this text")
    parser.add_argument("--step", type=int, default=1, help="run every Nth case")
    given = parser.parse_args()
    records, bad = [], 0
    for case, outcome in measure([case for case in CASES if given.only in case.name][:: given.step]):
        failed = problem(outcome)
        bad += bool(failed)
        said = (outcome.stderr.strip().splitlines() or [""])[-1]
        if failed or given.only:
            print(f"{case.name}: {failed or said}")
        record: dict[str, Any] = {"name": case.name, "seconds": round(outcome.seconds, 2)}
        records.append({**record, "megabytes": round(outcome.bytes / 1e6), "problem": failed})
    summary = {
        "cases": len(records),
        "refused": len(records) - bad,
        "limit_seconds": MAX_SECONDS,
        "limit_megabytes": MAX_BYTES // 10**6,
        "most_seconds": max(record["seconds"] for record in records),
        "most_megabytes": max(record["megabytes"] for record in records),
    }
    result = {**about(), "command": "python -m benchmarks.hostile_files", **summary, "records": records}
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
