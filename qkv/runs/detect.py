"""Find objects with a trained run: `qkv.detect(run, picture)`."""

from pathlib import Path

from torch import nn

from qkv.inference import FoundObject, ObjectFinder
from qkv.inference.detect import MIN_SCORE, PictureSource
from qkv.runs.config import Config
from qkv.runs.load import load
from qkv.tasks.base import Task

LoadedRun = tuple[Config, Task, nn.Module]


def load_detector(run: str | Path | LoadedRun) -> ObjectFinder:
    """Load a run of task `detect`, to find objects in pictures; `run` is its folder, or what `load` returned."""
    _, task, model = load(Path(run)) if isinstance(run, str | Path) else run
    finder = task.object_finder(model)
    if finder is None:
        name = f"{run} is a run" if isinstance(run, str | Path) else "this is a run"
        raise ValueError(f"{name} of task {task.kind!r}; finding objects needs one of task 'detect'")
    return finder


def detect(
    model: str | Path | LoadedRun | ObjectFinder, picture: PictureSource, *, min_score: float = MIN_SCORE
) -> list[FoundObject]:
    """Return the objects of a picture with at least this score, the surest first.

        for found in qkv.detect("runs/cards", "photo.jpg"):
            print(found.label, found.score, found.box)

    To look at many pictures, keep the result of `load_detector`: it loads the model once.

    Args:
        model: Folder of a run of task `detect`, what `load` returned for it, or a detector of `load_detector`.
        picture: An image file, a uint8 array (height, width, 3), or a uint8 tensor (3, height, width).
        min_score: Least score, from 0 to 1 (default: 0.5).
    """
    finder = model if isinstance(model, ObjectFinder) else load_detector(model)
    return finder.find(picture, min_score=min_score)
