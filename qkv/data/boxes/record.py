"""Pictures with labeled boxes, as the readers of all formats return them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qkv.data.files.image_files import check_image
from qkv.errors import QkvError


@dataclass(frozen=True)
class LabeledBox:
    """One object: its class and its box in pixels. The picture's left edge is x = 0, so the width is x2 - x1."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float
    difficult: bool = False
    """Whether evaluation ignores it: `difficult` of Pascal VOC, `iscrowd` of COCO."""


@dataclass(frozen=True)
class BoxedImage:
    """An image file with its objects, possibly none."""

    path: Path
    width: int
    height: int
    objects: tuple[LabeledBox, ...]


@dataclass(frozen=True)
class BadBox:
    """An annotation or file that cannot be used, and the reason."""

    path: Path
    line: int
    """Line number from 1; 0: the whole file."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}{f':{self.line}' if self.line else ''}: {self.reason}"


@dataclass(frozen=True)
class BoxFolder:
    """The images of a folder, the class names (index = class number), and the skipped annotations."""

    images: tuple[BoxedImage, ...]
    classes: tuple[str, ...]
    problems: tuple[BadBox, ...]


class Problems:
    """A list of problems; with `strict` the first one raises."""

    def __init__(self, strict: bool):
        self.strict = strict
        self.found: list[BadBox] = []

    def add(self, path: Path, reason: str, line: int = 0) -> None:
        """Add a problem to the list; raise it if `strict`."""
        bad = BadBox(path, line, reason)
        if self.strict:
            raise QkvError(str(bad))
        self.found.append(bad)

    def image_size(self, path: Path) -> tuple[int, int] | None:
        """Return (width, height) of an image file; None, and a problem, for one that cannot be read."""
        try:
            _, height, width = check_image(path)
        except QkvError as error:
            self.add(path, error.what)
            return None
        return width, height

    def check_box(self, box: LabeledBox, size: tuple[int, int], path: Path, line: int = 0) -> bool:
        """Return whether a box can be used; add a problem if not.

        It must have an area, and lie within a picture of this (width, height), with a tolerance of half a pixel.
        """
        width, height = size
        corners = (box.x1, box.y1, box.x2, box.y2)
        text = f"the box of {box.label!r} ({', '.join(f'{corner:g}' for corner in corners)})"
        if not all(abs(corner) < 1e9 for corner in corners):  # also NaN
            self.add(path, f"{text} is not finite", line)
        elif box.x2 <= box.x1 or box.y2 <= box.y1:
            self.add(path, f"{text} has no area", line)
        elif min(box.x1, box.y1) < -0.5 or box.x2 > width + 0.5 or box.y2 > height + 0.5:
            self.add(path, f"{text} does not lie within the picture of {width} x {height} pixels", line)
        else:
            return True
        return False


def make_folder(images: Iterable[BoxedImage], classes: Iterable[str], problems: Problems, where: Path) -> BoxFolder:
    """Return the folder; raise if it has no usable picture or no object at all."""
    found = tuple(images)
    listed = f"; first problem: {problems.found[0]}" if problems.found else ""
    if not found:
        raise QkvError(f"{where.name} has no labeled pictures{listed}", where.parent)
    if not any(image.objects for image in found):
        raise QkvError(f"no picture of {where.name} has a box{listed}", where.parent)
    return BoxFolder(found, tuple(classes), tuple(problems.found))
