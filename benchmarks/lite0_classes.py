"""The five first classes of EfficientNet-Lite0 for photographs whose content is known.

    python -m benchmarks.lite0_classes --data FOLDER

The folder has files of the wheels scikit-image 0.25.2 (skimage/data: chelsea.png, coffee.png, rocket.jpg,
motorcycle_left.png) and scikit-learn 1.7.2 (sklearn/datasets/images: china.jpg, flower.jpg). A photograph is resized so
that its shorter side has 256 pixels, and 224 x 224 of its middle are classified.
Writes benchmarks/results/lite0_classes.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.machine import about
from qkv.models.detectors.lite0 import Lite0
from qkv.storage import write_atomic

RESULTS = Path(__file__).parent / "results" / "lite0_classes.json"
SHORTER_SIDE, CROP, FIRST = 256, 224, 5
CLASSES = {
    108: "sea anemone", 281: "tabby", 282: "tiger cat", 285: "Egyptian cat", 287: "lynx", 309: "bee", 310: "ant",
    442: "bell cote", 483: "castle", 504: "coffee mug", 518: "crash helmet", 535: "disk brake",
    540: "drilling platform", 657: "missile", 663: "monastery", 665: "moped", 668: "mosque", 670: "motor scooter",
    671: "mountain bike", 698: "palace", 744: "projectile", 812: "space shuttle", 832: "stupa", 904: "window screen",
    925: "consomme", 947: "mushroom", 960: "chocolate sauce", 967: "espresso", 968: "cup", 975: "lakeside",
    985: "daisy",
}  # fmt: skip
"""Names of some of ImageNet's classes."""
EXPECTED = {
    "chelsea.png": (281, 282, 285),
    "coffee.png": (504, 967, 968),
    "rocket.jpg": (657, 744, 812),
    "motorcycle_left.png": (665, 670),
    "china.jpg": (663, 698, 832),
    "flower.jpg": (985,),
}
"""Classes that name the content: a cat, a cup of espresso, a rocket, a motorcycle, a palace, a flower."""


def main() -> None:
    """Classify every photograph, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    model = Lite0().eval()
    model.load_pretrained()
    photographs = {name: classify(model, given.data / name) for name in EXPECTED}
    first = sum(record["rank"] == 1 for record in photographs.values())
    found = sum(record["rank"] is not None for record in photographs.values())
    result = {
        **about(),
        "command": "python -m benchmarks.lite0_classes --data FOLDER",
        "figures": {"photographs": len(EXPECTED), "right_first": first, "right_among_five": found},
        "photographs": photographs,
    }
    write_atomic(given.result, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(photographs, indent=1))


@torch.inference_mode()
def classify(model: Lite0, path: Path) -> dict[str, Any]:
    """Return the first classes with their probabilities, and the rank of the first right one."""
    probabilities = model(read_photograph(path)).softmax(-1)[0]
    best, index = probabilities.topk(FIRST)
    classes = index.tolist()
    right = [rank for rank, number in enumerate(classes, 1) if number in EXPECTED[path.name]]
    listed = [
        {"class": number, "name": CLASSES.get(number), "probability": round(value, 4)}
        for number, value in zip(classes, best.tolist(), strict=True)
    ]
    return {"expected": [CLASSES[c] for c in EXPECTED[path.name]], "rank": right[0] if right else None, "first": listed}


def read_photograph(path: Path) -> Tensor:
    """Return the middle of a photograph as (1, 3, 224, 224), (x - 127) / 128."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = SHORTER_SIDE / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    pixels = torch.from_numpy(np.array(image.crop((left, top, left + CROP, top + CROP)))).movedim(-1, 0)[None]
    return (pixels.float() - 127) / 128


if __name__ == "__main__":
    main()
