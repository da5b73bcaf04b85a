"""Faster R-CNN on photographs, ours beside torchvision's with the same backbone, pictures and time.

    python -m benchmarks.detection_cards --data cards --seconds 130 --device cuda --peer --scratch --out cards.json
    python -m benchmarks.detection_cards --data cards --hold-out 40 --set train.learning_rate=1e-3 --out try.json

The folder has train/ and test/ with Pascal VOC boxes. Settings are chosen with --hold-out, which trains without some of
the training pictures and evaluates on these; the test pictures are for the last run alone. The result is written after
every part, so that an interrupted run keeps what it has. Without a package index, QKV_CACHE must have the folder
efficientnet-lite0. torchvision is needed for --peer only.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.machine import about
from qkv.compare.trial import open_run, read_training_metrics
from qkv.data.boxes import read_boxes
from qkv.metrics import coco_evaluate
from qkv.metrics.detection_intervals import ap_intervals
from qkv.models.detectors import Detection, Detector
from qkv.runs import build, configure, preset
from qkv.storage import write_atomic
from qkv.tasks.detection.data import DetectOptions
from qkv.tasks.detection.evaluation import to_detections, to_objects
from qkv.tasks.detection.pictures import FilePictures, LabeledPicture, collate_pictures
from qkv.tasks.detection.task import DetectTask
from qkv.tasks.options import read_options
from qkv.train import Compute, Loop

SIZE = 320
"""Longer side of the pictures in pixels, for both."""
BATCH, RATE = 16, 3e-4
TIMED_ROUNDS = 3
NEVER = 10**9

Detect = Callable[[LabeledPicture], Detection]


@dataclass(frozen=True)
class Pictures:
    """What both are trained on and tested with."""

    train: FilePictures
    test: FilePictures
    classes: tuple[str, ...]


def main() -> None:
    """Train, evaluate and time one after the other; write after each."""
    given = _arguments()
    pictures = read_data(given.data, given.hold_out)
    result: dict[str, Any] = {
        **about(),
        "command": "python -m benchmarks.detection_cards " + _command(given),
        "pictures": {"train": len(pictures.train), "test": len(pictures.test), "longer_side": SIZE},
        "tested_on": "held-out training pictures" if given.hold_out else "test pictures",
        "systems": {},
    }
    trained: dict[str, Detect] = {}
    for name in _parts(given):
        _print(f"{name}: training for {given.seconds:g} s")
        pretrained = not name.endswith("scratch")
        train = train_peer if name.startswith("peer") else train_ours
        trained[name], record = train(given, pictures, pretrained)
        record |= evaluate(trained[name], pictures)
        result["systems"][name] = record
        _write(given.out, result)
        _print(f"{name}: AP50 {record['ap50']:.3f}, mAP {record['mean_ap']:.3f}, {record['passes']:.1f} passes")
    for name, ms in time_in_turns(trained, pictures.test, given.device).items():
        result["systems"][name] |= ms
        _print(f"{name}: {ms['ms_per_picture']:.2f} ms per picture")
    _write(given.out, result)


def read_data(folder: Path, hold_out: int) -> Pictures:
    """Read train/ and test/; with `hold_out`, test on that many training pictures, spread over the list, instead."""
    read = read_boxes(folder / "train", strict=True)
    images, classes = list(read.images), read.classes
    if hold_out:
        held = {round(i * len(images) / hold_out) for i in range(hold_out)}
        test = [image for i, image in enumerate(images) if i in held]
        images = [image for i, image in enumerate(images) if i not in held]
    else:
        test = list(read_boxes(folder / "test", strict=True).images)
    return Pictures(FilePictures(images, classes, SIZE), FilePictures(test, classes, SIZE), classes)


def train_ours(given: argparse.Namespace, pictures: Pictures, pretrained: bool) -> tuple[Detect, dict[str, Any]]:
    """Train `faster` through the training loop of `qkv train`; its time includes collating and augmentation."""
    changes: dict[str, dict[str, Any]] = {
        "model": {"backbone": "lite0" if pretrained else "lite0-random"},
        "train": {"steps": None, "minutes": given.seconds / 60, "batch_size": BATCH, "learning_rate": RATE,
                  "validate_every": NEVER, "seed": given.seed},
        "data": {"train_file": str(given.data), "size": SIZE},
    }  # fmt: skip
    for group, name, value in map(_parse_setting, given.set):
        changes[group][name] = value
    config = configure("detect", preset("detect", "photos"), changes)
    options = read_options(DetectOptions, config.data)
    # one picture for the validation at the end, which decides nothing
    valid = FilePictures(pictures.train.images[:1], pictures.classes, SIZE)
    task = DetectTask({"train": pictures.train, "valid": valid, "test": pictures.test}, pictures.classes, options)
    _read_all(pictures.train)
    model = build(config, task)
    assert isinstance(model, Detector)
    with tempfile.TemporaryDirectory() as folder:
        run, config = open_run(Path(folder) / "run", replace(config, data=task.options), task)
        loop = Loop(task.objective(model, config.train), config.train, run, Compute(given.device, given.workers))
        loop.train()
        metrics = read_training_metrics(run)
    model.load_state_dict(loop.best)
    record = {"settings": {"model": config.model, "train": asdict(loop.settings), "data": _changed(options)},
              "parameters": _count(model), "steps": metrics["steps"], "seconds": metrics["seconds"],
              "passes": metrics["steps"] * config.train.batch_size / len(pictures.train)}  # fmt: skip
    return _our_detect(model.eval(), given.device), record


def train_peer(given: argparse.Namespace, pictures: Pictures, pretrained: bool) -> tuple[Detect, dict[str, Any]]:
    """Train torchvision's FasterRCNN on the same backbone."""
    from benchmarks.detection_peer import detect_with_peer, train_torchvision  # noqa: PLC0415 - torchvision is optional

    _read_all(pictures.train)
    model, record = train_torchvision(
        pictures.train, len(pictures.classes), seconds=given.seconds, device=given.device,
        pretrained=pretrained, seed=given.seed, batch=BATCH, rate=RATE,
    )  # fmt: skip
    return detect_with_peer(model, given.device), {**record, "parameters": _count(model)}


def evaluate(detect: Detect, pictures: Pictures) -> dict[str, Any]:
    """Return COCO's figures with intervals, and the AP50 of each class."""
    items = [pictures.test[index] for index in range(len(pictures.test))]
    found, objects = [to_detections(detect(item)) for item in items], [to_objects(item) for item in items]
    result = coco_evaluate(found, objects, len(pictures.classes))
    intervals = ap_intervals(found, objects, len(pictures.classes))
    return {
        **result.scores.to_dict(),
        **{f"{name}_interval": list(ends) for name, ends in intervals.items()},
        "class_ap50": dict(zip(pictures.classes, result.class_ap(0.5), strict=True)),
    }


def time_in_turns(trained: dict[str, Detect], pictures: FilePictures, device: str) -> dict[str, dict[str, Any]]:
    """Return the median time per picture, batch 1, systems in turns so that a busy moment hits all alike."""
    items = [pictures[index] for index in range(len(pictures))]
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for number in range(TIMED_ROUNDS + 1):
        for item in items:
            for name, detect in trained.items():
                _wait(device)
                start = time.perf_counter()
                detect(item)
                _wait(device)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - start)
    return {
        name: {"ms_per_picture": 1000 * statistics.median(own), "ms_quartiles": _quartiles(own)}
        for name, own in seconds.items()
    }


def _our_detect(model: Detector, device: str) -> Detect:
    def detect(item: LabeledPicture) -> Detection:
        batch = collate_pictures([item])
        (found,) = model.detect(batch.pictures.to(device), batch.extents.to(device), batch.proposals.to(device))
        return Detection(*(x.cpu() for x in found))

    return detect


def _read_all(pictures: FilePictures) -> None:
    """Decode the pictures before the clock starts, for both."""
    for index in range(len(pictures)):
        pictures[index]


def _parts(given: argparse.Namespace) -> list[str]:
    systems = ["ours", "peer"] if given.peer else ["ours"]
    return systems + [f"{name}-scratch" for name in systems if given.scratch]


def _parse_setting(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    group, dot, key = name.partition(".")
    if not equals or not dot or group not in ("model", "train", "data"):
        raise SystemExit(f"--set {text}: expected model.NAME=VALUE, train.NAME=VALUE or data.NAME=VALUE")
    try:
        return group, key, json.loads(value)
    except json.JSONDecodeError:
        return group, key, value


def _changed(options: DetectOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name in ("flip", "zoom", "color", "size")}


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _quartiles(values: Sequence[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [1000 * low, 1000 * high]


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _print(text: str) -> None:
    print(text, flush=True)


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(result, indent=1) + "\n").encode())


def _command(given: argparse.Namespace) -> str:
    words = [f"--data {given.data.name} --seconds {given.seconds:g} --device {given.device} --seed {given.seed}"]
    words += [f"--hold-out {given.hold_out}"] if given.hold_out else []
    words += [f"--{name}" for name in ("peer", "scratch") if getattr(given, name)]
    return " ".join(words + [f"--set {setting}" for setting in given.set])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/")
    parser.add_argument("--seconds", type=float, default=130, help="training time of each system")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--peer", action="store_true", help="torchvision's FasterRCNN as well")
    parser.add_argument("--scratch", action="store_true", help="then both without pretraining")
    parser.add_argument("--hold-out", type=int, default=0, help="test on this many training pictures instead")
    parser.add_argument("--set", action="append", default=[], metavar="GROUP.NAME=VALUE", help="settings of ours")
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare our batches")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.peer and find_spec("torchvision") is None:
        parser.error("--peer needs torchvision, which is not installed")
    return given


if __name__ == "__main__":
    main()
