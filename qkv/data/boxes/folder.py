"""Read pictures with boxes in any format: Pascal VOC XML, COCO JSON or YOLO text."""

from pathlib import Path

from qkv.data.boxes.coco import read_coco
from qkv.data.boxes.record import BoxFolder
from qkv.data.boxes.voc import read_voc
from qkv.data.boxes.yolo import read_yolo
from qkv.data.files.image_files import list_images
from qkv.errors import QkvError
from qkv.storage.atomic import missing_error


def read_boxes(path: Path | str, *, strict: bool = False) -> BoxFolder:
    """Read a COCO JSON file, or a folder in any of the three formats, which is recognized by its files.

    Args:
        path: File or folder.
        strict: Raise at the first bad place, instead of listing it in `problems`.
    """
    path = Path(path)
    if not path.exists():
        raise missing_error("file or folder", path)
    if path.is_file():
        return read_coco(path, strict=strict)
    if next(path.rglob("*.xml"), None) is not None:
        return read_voc(path, strict=strict)
    found = sorted(path.glob("*.json")) or sorted(path.glob("annotations/*.json"))
    if len(found) > 1:
        raise QkvError(f"{path.name} has {len(found)} JSON files; name the one to read", path.parent, found[0].name)
    if found:
        return read_coco(found[0], strict=strict)
    if not list_images(path):
        raise QkvError(f"{path.name} has no pictures", path.parent)
    return read_yolo(path, strict=strict)
