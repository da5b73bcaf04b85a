"""YOLO text files: one per picture, a line per object, sizes as shares of the picture.

    class x_center y_center width height

Classes are numbers from 0. Their names come from data.yaml (`names:`), classes.txt or obj.names in the folder or in the
one above. Text files lie beside the pictures, or in labels/ where pictures are in images/.
"""

import re
from pathlib import Path

from qkv.data.boxes.record import BoxedImage, BoxFolder, LabeledBox, Problems, make_folder
from qkv.data.files.image_files import list_images
from qkv.errors import QkvError
from qkv.storage import read_file

NAME_FILES = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")
MAX_TEXT_BYTES = 2**24


def read_yolo(folder: Path, *, strict: bool = False) -> BoxFolder:
    """Read the label files of all pictures; a picture without one, or with an empty one, has no objects."""
    problems = Problems(strict)
    names = _read_names(folder)
    images = [image for path in list_images(folder) if (image := _read_picture(path, names, problems)) is not None]
    return make_folder(images, names, problems, folder)


def labels_path(picture: Path) -> Path:
    """Return the label file of a picture: beside it, or in labels/ for one in images/."""
    beside = picture.with_suffix(".txt")
    if beside.is_file() or "images" not in picture.parts:
        return beside
    last = len(picture.parts) - 1 - picture.parts[::-1].index("images")
    return Path(*picture.parts[:last], "labels", *picture.parts[last + 1 :]).with_suffix(".txt")


def _read_names(folder: Path) -> tuple[str, ...]:
    for parent in (folder, folder.parent):
        for name in NAME_FILES:
            if (parent / name).is_file():
                text = read_file(parent / name, MAX_TEXT_BYTES).decode("utf-8", errors="replace")
                names = (
                    _yaml_names(text)
                    if name.endswith(".yaml")
                    else tuple(filter(None, map(str.strip, text.split("\n"))))
                )
                if not names:
                    raise QkvError(f"{name} has no class names", parent)
                return names
    raise QkvError(f"YOLO labels need class names in one of {', '.join(NAME_FILES)}", folder)


def _yaml_names(text: str) -> tuple[str, ...]:
    """Return the `names` of a YOLO data.yaml: a list in brackets, a list of dashes, or numbered lines."""
    match = re.search(r"^names:[ \t]*(\[[^\]]*\]|\{[^}]*\})?[^\n]*((?:\n[ \t]*(?:-|\d+[ \t]*:)[^\n]*)*)", text, re.M)
    if match is None:
        return ()
    inline = (match[1] or "").strip("[]{}")
    rows = inline.split(",") if inline else match[2].split("\n")
    cleaned = (re.sub(r"^\s*(-|\d+\s*:)?\s*|\s*(#.*)?$", "", row).strip("'\"") for row in rows)
    return tuple(name for name in cleaned if name)


def _read_picture(picture: Path, names: tuple[str, ...], problems: Problems) -> BoxedImage | None:
    size = problems.image_size(picture)
    if size is None:
        return None
    width, height = size
    path = labels_path(picture)
    text = read_file(path, MAX_TEXT_BYTES).decode("utf-8", errors="replace") if path.is_file() else ""
    boxes = []
    for number, line in enumerate(text.splitlines(), 1):
        box = _read_line(line, names, size, path, problems, number) if line.strip() else None
        if box is not None and problems.check_box(box, size, path, number):
            boxes.append(box)
    return BoxedImage(picture, width, height, tuple(boxes))


def _read_line(
    line: str, names: tuple[str, ...], size: tuple[int, int], path: Path, problems: Problems, number: int
) -> LabeledBox | None:
    try:
        label, x, y, w, h = line.split()[:5]
        index, (x_center, y_center, width, height) = int(label), (float(value) for value in (x, y, w, h))
    except ValueError:
        problems.add(path, f"must have a class number and four numbers, got {line.strip()[:40]!r}", number)
        return None
    if not 0 <= index < len(names):
        problems.add(path, f"has class {index}, but there are {len(names)} names", number)
        return None
    half_width, half_height = width / 2, height / 2
    return LabeledBox(
        names[index],
        (x_center - half_width) * size[0],
        (y_center - half_height) * size[1],
        (x_center + half_width) * size[0],
        (y_center + half_height) * size[1],
    )
