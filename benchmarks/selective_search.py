"""Selective search, ours beside OpenCV's at the same two scales, on photographs with Pascal VOC boxes.

    python -m benchmarks.selective_search --data cards/test --result benchmarks/results/selective_search_cpu.json

Needs opencv-contrib-python-headless. Both merge by color, size and fill in RGB. They take turns on each picture, with
one thread each, and the median time per picture counts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2  # type: ignore[import-not-found]
import numpy as np
import torch
from numpy import ndarray

from benchmarks.machine import about
from qkv.data.boxes import read_boxes
from qkv.models.regions import iou, selective_search
from qkv.models.regions.selective_search import SCALES
from qkv.storage import write_atomic
from qkv.tasks.detection.pictures import FilePictures

SIZE = 320
"""Longer side in pixels."""
MIN_SIZE = 20
SIGMA = 0.8

Propose = Callable[[ndarray], ndarray]


def main() -> None:
    """Propose regions for all pictures, write and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of pictures with Pascal VOC boxes")
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    read = read_boxes(given.data, strict=True)
    pictures = FilePictures(list(read.images), read.classes, SIZE)
    systems = compare(pictures, {"ours": selective_search, "opencv": propose_with_opencv})
    result = {
        **about(),
        "command": "python -m benchmarks.selective_search --data FOLDER",
        "opencv": cv2.__version__,
        "pictures": len(pictures),
        "scales": list(SCALES),
        "systems": systems,
        "time_ratio": systems["ours"]["ms"] / systems["opencv"]["ms"],
    }
    write_atomic(given.result, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(result, indent=1))


def propose_with_opencv(picture: ndarray) -> ndarray:
    """Return the proposals (x1, y1, x2, y2) of OpenCV."""
    tools = cv2.ximgproc.segmentation
    search = tools.createSelectiveSearchSegmentation()
    search.setBaseImage(picture)
    search.addImage(picture)
    for scale in SCALES:
        search.addGraphSegmentation(tools.createGraphSegmentation(SIGMA, scale, MIN_SIZE))
    parts = (
        tools.createSelectiveSearchSegmentationStrategyColor(),
        tools.createSelectiveSearchSegmentationStrategySize(),
        tools.createSelectiveSearchSegmentationStrategyFill(),
    )
    search.addStrategy(tools.createSelectiveSearchSegmentationStrategyMultiple(*parts))
    x, y, width, height = np.asarray(search.process(), dtype=np.float32).reshape(-1, 4).T
    return np.stack([x, y, x + width, y + height], 1)


def compare(pictures: FilePictures, systems: dict[str, Propose]) -> dict[str, dict[str, Any]]:
    """Return recall at IoU 0.5 and 0.7, proposals per picture and the median time of each system."""
    best: dict[str, list[float]] = {name: [] for name in systems}
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    counts: dict[str, list[int]] = {name: [] for name in systems}
    for index in range(len(pictures)):
        item = pictures[index]
        picture = np.ascontiguousarray(item.picture.movedim(0, -1).numpy())
        for name, propose in systems.items():
            start = time.perf_counter()
            proposals = propose(picture)
            seconds[name].append(time.perf_counter() - start)
            counts[name].append(len(proposals))
            overlaps = iou(torch.from_numpy(proposals).double(), item.boxes.double())
            best[name] += overlaps.amax(0).tolist() if len(proposals) else [0.0] * len(item.boxes)
    return {
        name: {
            "recall_50": statistics.fmean(x >= 0.5 for x in best[name]),
            "recall_70": statistics.fmean(x >= 0.7 for x in best[name]),
            "objects": len(best[name]),
            "proposals": statistics.fmean(counts[name]),
            "ms": 1000 * statistics.median(seconds[name]),
        }
        for name in systems
    }


if __name__ == "__main__":
    main()
