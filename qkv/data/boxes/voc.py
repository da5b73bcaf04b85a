"""Pascal VOC: one XML file per picture.

<annotation><filename>a.jpg</filename><size><width>320</width> ...</size>
<object><name>king</name><difficult>0</difficult><bndbox><xmin>1</xmin> ... </bndbox></object></annotation>

Coordinates count pixels from 1 and include the last one: xmin = 1, xmax = 320 is the whole width.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from qkv.data.boxes.record import BoxedImage, BoxFolder, LabeledBox, Problems, make_folder
from qkv.data.files.image_files import list_images
from qkv.errors import QkvError
from qkv.storage import read_file

MAX_XML_BYTES = 2**24


def read_voc(folder: Path, *, strict: bool = False) -> BoxFolder:
    """Read all XML files of a folder and its subfolders; pictures are found by name anywhere in it."""
    problems = Problems(strict)
    pictures = {path.stem: path for path in list_images(folder)}
    images = [
        image
        for path in sorted(folder.rglob("*.xml"))
        if (image := _read_picture(path, pictures, problems)) is not None
    ]
    return make_folder(images, sorted({box.label for image in images for box in image.objects}), problems, folder)


def _read_picture(path: Path, pictures: dict[str, Path], problems: Problems) -> BoxedImage | None:
    try:
        root = _parse(path)
    except QkvError as error:
        problems.add(path, error.what)
        return None
    named = Path((root.findtext("filename") or path.stem).strip()).stem
    picture = pictures.get(path.stem) or pictures.get(named)
    if picture is None:
        problems.add(path, f"its picture {named!r} is missing")
        return None
    size = problems.image_size(picture)
    if size is None:
        return None
    width, height = size
    if not _sizes_agree(root, width, height):
        problems.add(path, f"its size is not that of {picture.name}, {width} x {height}; the picture's size is used")
    boxes = [box for box, line in _boxes(root, path, problems) if problems.check_box(box, size, path, line)]
    return BoxedImage(picture, width, height, tuple(boxes))


def _parse(path: Path) -> Element:
    data = read_file(path, MAX_XML_BYTES)
    if b"<!ENTITY" in data or b"<!DOCTYPE" in data:  # entities can expand without bound
        raise QkvError("a document type is not allowed")
    try:
        root = _tree_with_lines(data)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise QkvError(f"it is not XML ({error})") from None
    if root.tag != "annotation":
        raise QkvError(f"it is not a Pascal VOC annotation: its root is <{root.tag}>")
    return root


def _tree_with_lines(data: bytes) -> Element:
    """Parse XML; the only attribute of each element is `line`, the line it begins on."""
    parser, builder = expat.ParserCreate(), TreeBuilder()
    parser.StartElementHandler = lambda tag, _: builder.start(tag, {"line": str(parser.CurrentLineNumber)})
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.Parse(data, True)
    return builder.close()


def _sizes_agree(root: Element, width: int, height: int) -> bool:
    given = [(root.findtext(f"size/{name}") or "").strip() for name in ("width", "height")]
    return given in ([str(width), str(height)], ["", ""])


def _boxes(root: Element, path: Path, problems: Problems) -> Iterator[tuple[LabeledBox, int]]:
    """Yield each object with its line in the file."""
    for found in root.iter("object"):
        line = int(found.attrib["line"])
        label = (found.findtext("name") or "").strip()
        try:
            corners = [float(found.findtext(f"bndbox/{name}") or "") for name in ("xmin", "ymin", "xmax", "ymax")]
        except ValueError:
            problems.add(path, f"the box of {label!r} does not have xmin, ymin, xmax and ymax as numbers", line)
            continue
        if not label:
            problems.add(path, "an object has no name", line)
            continue
        difficult = (found.findtext("difficult") or "0").strip() not in ("", "0")
        yield LabeledBox(label, corners[0] - 1, corners[1] - 1, corners[2], corners[3], difficult), line
