"""Three small detectors of generated scenes, trained: run folders without checkpoints and logs, in half precision.

Made by `qkv compare detect --models rcnn,fast,faster`, then `pack(run, FOLDER / name, half=True)` of each.
"""

from pathlib import Path

from qkv.models.detectors import Detector
from qkv.runs import load
from qkv.storage import verify_folder
from qkv.tasks.detection.task import DetectTask

FOLDER = Path(__file__).parent


def trained_detector(name: str, test_scenes: int) -> tuple[DetectTask, Detector]:
    """Load a detector, and its task with this many test scenes."""
    verify_folder(FOLDER / name)
    config, _, detector = load(FOLDER / name)
    assert isinstance(detector, Detector)
    return DetectTask.load({**config.data, "test_scenes": test_scenes}), detector
