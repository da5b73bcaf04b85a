"""COCO JSON: one file for all pictures.

{"images": [{"id": 1, "file_name": "a.jpg", "width": 320, "height": 240}],
 "categories": [{"id": 7, "name": "king"}],
 "annotations": [{"image_id": 1, "category_id": 7, "bbox": [x, y, width, height], "iscrowd": 0}]}

Pictures are looked up beside the file, in the folder of its split, and by name anywhere below its folder.
"""

from pathlib import Path
from typing import Any

from qkv.data.boxes.record import BoxedImage, BoxFolder, LabeledBox, Problems, make_folder
from qkv.data.files.image_files import list_images
from qkv.errors import QkvError
from qkv.storage import read_file
from qkv.storage.json import load_json

MAX_JSON_BYTES = 2**31


def read_coco(path: Path, *, strict: bool = False) -> BoxFolder:
    """Read a COCO instances file and the sizes of its pictures."""
    problems = Problems(strict)
    record = load_json(read_file(path, MAX_JSON_BYTES), path)
    images, categories, annotations = (_rows(record, name, path) for name in ("images", "categories", "annotations"))
    names = {row.get("id"): str(row.get("name")) for row in categories}
    by_image: dict[Any, list[LabeledBox]] = {row.get("id"): [] for row in images}
    for number, row in enumerate(annotations, 1):
        box = _box(row, names, by_image, path, problems, number)
        if box is not None:
            by_image[row["image_id"]].append(box)
    files = {found.name: found for found in list_images(path.parent)}
    found = [image for row in images if (image := _image(row, by_image, files, path, problems)) is not None]
    return make_folder(found, (names[key] for key in sorted(names, key=str)), problems, path)


def _rows(record: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    rows = record.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise QkvError(f"{path.name} must have a list of objects {name!r}, as COCO files do", path.parent)
    return rows


def _box(
    row: dict[str, Any], names: dict[Any, str], images: dict[Any, Any], path: Path, problems: Problems, number: int
) -> LabeledBox | None:
    match row:
        case {"bbox": [int() | float() as x, int() | float() as y, int() | float() as w, int() | float() as h]}:
            pass
        case _:
            problems.add(path, f"annotation {number} has no bbox of four numbers")
            return None
    if row.get("image_id") not in images:
        problems.add(path, f"annotation {number} is of image_id {row.get('image_id')!r}, which is not in 'images'")
    elif row.get("category_id") not in names:
        problems.add(path, f"annotation {number} has category_id {row.get('category_id')!r}, not in 'categories'")
    else:
        return LabeledBox(names[row["category_id"]], x, y, x + w, y + h, bool(row.get("iscrowd", 0)))
    return None


def _image(
    row: dict[str, Any], boxes: dict[Any, list[LabeledBox]], files: dict[str, Path], path: Path, problems: Problems
) -> BoxedImage | None:
    name = str(row.get("file_name", ""))
    direct = path.parent / name
    picture = direct if name and direct.is_file() else files.get(Path(name).name)
    if picture is None:
        problems.add(path, f"the picture {name!r} is missing")
        return None
    size = problems.image_size(picture)
    if size is None:
        return None
    width, height = size
    if (row.get("width", width), row.get("height", height)) != (width, height):
        problems.add(path, f"the size of {name!r} is not {width} x {height}, that of the picture, which is used")
    kept = [box for box in boxes[row.get("id")] if problems.check_box(box, size, path)]
    return BoxedImage(picture, width, height, tuple(kept))
