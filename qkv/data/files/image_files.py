"""Image files (PNG, JPEG and others), decoded with pillow, and folders of them with a subfolder per class.

    pictures/cat/01.png  pictures/cat/02.jpg  pictures/dog/01.png

Images are uint8 (channels, height, width): one channel if they are grayscale, else three.
"""

import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import UInt8
from torch import Tensor

from qkv.data.labeled import LabeledExamples
from qkv.errors import QkvError
from qkv.storage import open_file
from qkv.storage.atomic import list_names

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"))
MAX_PIXELS = 2**26
"""Largest image that is decoded, so that a small file cannot fill the memory."""
MAX_SIDE = 64
"""Longest side of images that keep their size when none is given."""
MIXED_SIDE = 32
"""Side that images of different sizes are resized to when none is given."""
ORIENTATION, QUARTER_TURN = 0x0112, 5
"""EXIF tag, and the first of its values that swap width and height."""

Shape = tuple[int, ...]
"""(channels, height, width)"""
OneImage = UInt8[Tensor, "channels height width"]


@dataclass(frozen=True)
class ImageFolder:
    """Images and the names of their classes; label i is classes[i]."""

    examples: LabeledExamples
    classes: tuple[str, ...]
    resized: int
    """Number of images that had another size."""


def is_image_file(path: Path) -> bool:
    """Return whether the name of a file ends as that of an image does."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def list_images(folder: Path) -> list[Path]:
    """Return the image files of a folder and its subfolders, sorted; hidden ones are left out."""
    found = (path for path in folder.rglob("*") if is_image_file(path) and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def read_image(path: Path, shape: Shape) -> OneImage:
    """Decode an image, as grayscale or RGB, resized to this shape."""
    with _open_image(path) as image:
        return _to_tensor(image, shape)


def fit_image(image: OneImage, shape: Shape) -> OneImage:
    """Return an image of another size or number of channels in this shape."""
    if tuple(image.shape) == shape:
        return image
    _require_pillow()
    from PIL import Image  # noqa: PLC0415 - an optional dependency

    array = image.movedim(0, 2).squeeze(2).numpy()
    return _to_tensor(Image.fromarray(array), shape)


def image_shape(path: Path, max_pixels: int = MAX_PIXELS) -> Shape:
    """Return the shape of an image after turning it like its camera; one of more pixels raises before it is decoded."""
    with _open_image(path, max_pixels) as image:
        size = (image.height, image.width)
        is_turned = image.getexif().get(ORIENTATION, 1) >= QUARTER_TURN
        return _channels(image), *(size[::-1] if is_turned else size)


def check_image(path: Path) -> Shape:
    """Return the shape of an image after decoding it whole, a JPEG at an eighth of its size; raise if it is damaged."""
    with _open_image(path) as image:
        image.draft(None, (image.width // 8, image.height // 8))
        image.load()
    return image_shape(path)


def read_image_folder(folder: Path, *, size: int = 0, shape: Shape | None = None) -> ImageFolder:
    """Read a folder with a subfolder of images per class.

    Args:
        folder: Its subfolders, sorted by name, are the classes.
        size: Side in pixels to resize to (default: 0, the size of the images if all have the same and none is longer
            than 64 pixels, else 32).
        shape: Shape to give all images, instead of `size`.
    """
    names = [name for name in list_names(folder) if (folder / name).is_dir() and not name.startswith(".")]
    files = {name: found for name in names if (found := list_images(folder / name))}
    if len(files) < 2:
        raise QkvError(
            f"{folder.name} must have at least two subfolders with images, one per class, got {len(files)}",
            folder.parent,
        )
    paths = [path for found in files.values() for path in found]
    shapes = [image_shape(path) for path in paths]
    shape = shape or _common_shape(shapes, size)
    images = torch.stack([read_image(path, shape) for path in paths])
    labels = torch.tensor([label for label, found in enumerate(files.values()) for _ in found])
    resized = sum(one[1:] != shape[1:] for one in shapes)
    return ImageFolder(LabeledExamples(images, labels), tuple(files), resized)


def _common_shape(shapes: Sequence[Shape], size: int) -> Shape:
    channels = max(channels for channels, *_ in shapes)
    sizes = {(height, width) for _, height, width in shapes}
    if size:
        return channels, size, size
    (height, width), *others = sizes
    if others or max(height, width) > MAX_SIDE:
        return channels, MIXED_SIDE, MIXED_SIDE
    return channels, height, width


@contextmanager
def _open_image(path: Path, max_pixels: int = MAX_PIXELS) -> Iterator["Image"]:
    """Open an image; whatever pillow raises for a damaged or hostile file becomes one sentence."""
    _require_pillow()
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - an optional dependency

    with open_file(path) as file:
        try:
            with _open_without_warning(file) as image:
                if image.width * image.height > max_pixels:
                    raise QkvError(
                        f"{path.name} has {image.width:,} x {image.height:,} pixels; at most {max_pixels:,} are read",
                        path.parent,
                    )
                yield image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # far more than MAX_PIXELS
            raise QkvError(f"{path.name} has too many pixels; at most {max_pixels:,} are read", path.parent) from None
        except UnidentifiedImageError:
            raise QkvError(f"{path.name} is not an image that pillow can read", path.parent) from None
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, struct.error) as error:
            raise QkvError(f"{path.name} is a damaged image ({error})", path.parent) from None


def _open_without_warning(file: BufferedReader) -> "Image":
    """Open an image; pillow's warning about too many pixels is raised as an error."""
    from PIL import Image  # noqa: PLC0415 - an optional dependency

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(file)


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        raise QkvError('images need pillow, which is not installed: pip install "qkv[vision]"') from None


def _channels(image: "Image") -> int:
    return 1 if image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;") else 3


def _to_tensor(image: "Image", shape: Shape) -> OneImage:
    """Return the pixels; what is transparent becomes white, and a photo is turned as its camera was."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - an optional dependency

    channels, height, width = shape
    if image.mode in ("I", "F") or image.mode.startswith("I;"):  # 16 bits per pixel
        image = image.point(lambda value: value / 256).convert("L")
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, channels).movedim(2, 0).contiguous()
