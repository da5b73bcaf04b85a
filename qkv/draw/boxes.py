"""Pictures with labeled boxes as self-contained SVG, and a page that shows a folder of them.

Found objects have solid boxes with a filled label, true objects dashed boxes with a white label. Text has a fixed size
on the screen, whatever the size of the picture, and stays inside of it.
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from qkv.draw.page import html_page
from qkv.draw.png import data_uri, encode_png
from qkv.draw.report_answers import safe_text
from qkv.draw.text import escape_text, shorten, text_width

SHORTEST, LONGEST = 480, 1024
"""Range of the longer side of the drawing; smaller and larger pictures are scaled."""
_FONT_SIZE, _LABEL_HEIGHT, _LABEL_MARGIN = 13, 18, 5
_MAX_LUMINANCE = 0.18
"""Maximum luminance of a label's color, so that white text on it has a contrast of at least 4.5."""
_GOLDEN_ANGLE = 0.381966

Picture = UInt8[ndarray, "height width 3"]
_Rect = tuple[float, float, float, float]


@dataclass(frozen=True)
class DrawnBox:
    """A box with a label."""

    label: str
    corners: tuple[float, float, float, float]
    """(x1, y1, x2, y2) in pixels of the picture."""
    score: float | None = None
    color: int = 0
    """Number of the class, which has the same color in every picture."""
    is_true: bool = False
    """Whether it is a true object, which is drawn dashed, not a found one."""

    @property
    def text(self) -> str:
        """Label and score."""
        return self.label if self.score is None else f"{self.label} {self.score:.2f}"


@dataclass(frozen=True)
class DrawnFile:
    """A drawing on a page of results."""

    name: str
    """File of the picture."""
    drawing: Path
    """File of the SVG, relative to the page."""
    found: Sequence[str]
    """A line of text per object."""


def draw_boxes(picture: Picture, boxes: Sequence[DrawnBox], title: str = "") -> str:
    """Return the picture with boxes as SVG; the picture is inside of the file."""
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or not picture.size:
        raise ValueError(f"picture must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}")
    for box in boxes:
        if not all(map(math.isfinite, box.corners)):
            raise ValueError(f"the box of {box.label!r} must be finite, got {box.corners}")
    height, width = picture.shape[:2]
    scale = min(max(1.0, SHORTEST / max(height, width)), LONGEST / max(height, width))
    size = (max(1.0, width * scale), max(1.0, height * scale))
    pixelated = ' image-rendering="pixelated"' if scale >= 3 else ""
    placed = [(box, _scale_box(box.corners, (width, height), size)) for box in boxes]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}" width="{size[0]:g}" '
            f'height="{size[1]:g}" role="img" font-family="system-ui, sans-serif" font-size="{_FONT_SIZE}">',
            f"<title>{escape_text(title)}</title>" if title else "<title>objects</title>",
            f'<image href="{_embed(picture)}" width="{size[0]:g}" height="{size[1]:g}" preserveAspectRatio="none"'
            f"{pixelated}/>",
            *(_draw_box(box, rect) for box, rect in placed),
            *_draw_labels(placed, size),
            "</svg>\n",
        ]
    )


def class_color(number: int) -> str:
    """Return a color for a class: hues far apart, dark enough for white text."""
    hue = (0.04 + number * _GOLDEN_ANGLE) % 1.0
    lightness = 0.5
    while _luminance(rgb := colorsys.hls_to_rgb(hue, lightness, 0.85)) > _MAX_LUMINANCE:
        lightness -= 0.02
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in rgb)


def drawings_page(title: str, files: Sequence[DrawnFile], note: str = "") -> str:
    """Return an HTML page that shows drawings which lie beside it."""
    cards = "\n".join(
        f'<figure class="card"><h3>{safe_text(file.name)}</h3>\n'
        f'<img loading="lazy" alt="" src="{quote(file.drawing.as_posix())}">\n'
        f"<p>{'<br>'.join(safe_text(line) for line in file.found) or 'nothing found'}</p></figure>"
        for file in files
    )
    header = f"<p>{safe_text(note, 1000)}</p>" if note else ""
    return html_page(title, header, f'<div class="pictures">{cards}</div>\n', images="'self' file: data:")


def _luminance(rgb: tuple[float, ...]) -> float:
    """Return the relative luminance of an sRGB color, 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _embed(picture: Picture) -> str:
    """Return the picture as a data address; one that is larger than its drawing is averaged in blocks."""
    factor = math.ceil(max(picture.shape[:2]) / LONGEST)
    if factor > 1:
        picture = _shrink(picture, factor)
    height, width = picture.shape[:2]
    return data_uri(encode_png(np.ascontiguousarray(picture).tobytes(), width, height, 3))


def _shrink(picture: Picture, factor: int) -> Picture:
    """Return the means of blocks of factor x factor pixels; the last ones may be smaller."""
    sums, counts = picture, np.ones((1, 1, 1))
    for axis in (0, 1):
        starts = np.arange(0, picture.shape[axis], factor)
        sums = np.add.reduceat(sums, starts, axis, dtype=np.int64)
        lengths = np.diff(starts, append=picture.shape[axis])
        counts = counts * np.expand_dims(lengths, [a for a in range(3) if a != axis])
    return np.rint(sums / counts).astype(np.uint8)


def _scale_box(corners: _Rect, old: tuple[int, int], new: tuple[float, float]) -> _Rect:
    """Return the corners on the drawing, clipped to it."""
    x1, y1, x2, y2 = (min(max(corner * new[i % 2] / old[i % 2], 0.0), new[i % 2]) for i, corner in enumerate(corners))
    return x1, y1, max(x1, x2), max(y1, y2)


def _draw_box(box: DrawnBox, rect: _Rect) -> str:
    """Draw the frame in the color of the class over a white one, so that it is seen on any picture."""
    x1, y1, x2, y2 = rect
    place = f'x="{x1:.1f}" y="{y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}" fill="none"'
    dashes = ' stroke-dasharray="7 4"' if box.is_true else ""
    kind = "true object" if box.is_true else "found"
    return (
        f'<g><title>{escape_text(box.text)} ({kind})</title><rect {place} stroke="#ffffff" stroke-width="4" '
        f'stroke-opacity="0.75"/><rect class="{"true" if box.is_true else "found"}" {place} '
        f'stroke="{class_color(box.color)}" stroke-width="2"{dashes}/></g>'
    )


def _draw_labels(placed: Sequence[tuple[DrawnBox, _Rect]], size: tuple[float, float]) -> list[str]:
    """Draw the labels of all boxes, where there is room in the picture and no other label."""
    taken: list[_Rect] = []
    parts = []
    for box, rect in placed:
        text = _fit_text(box.text, size[0])
        if not text or size[1] < _LABEL_HEIGHT:
            continue
        width = text_width(text, _FONT_SIZE) + 2 * _LABEL_MARGIN
        x, y = _place_label(rect, width, size, taken)
        taken.append((x, y, x + width, y + _LABEL_HEIGHT))
        color = class_color(box.color)
        fill, ink = ("#ffffff", color) if box.is_true else (color, "#ffffff")
        parts.append(
            f'<g class="label"><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_LABEL_HEIGHT}" rx="2" '
            f'fill="{fill}"/><text x="{x + _LABEL_MARGIN:.1f}" y="{y + _LABEL_HEIGHT / 2:.1f}" dy="0.35em" '
            f'fill="{ink}">{escape_text(text)}</text></g>'
        )
    return parts


def _fit_text(text: str, width: float) -> str:
    """Return the text, shortened to this width; empty if not even two characters fit."""
    length = min(len(text), int((width - 2 * _LABEL_MARGIN) / text_width("m", _FONT_SIZE)))
    while length > 1 and text_width(shorten(text, length), _FONT_SIZE) + 2 * _LABEL_MARGIN > width:
        length -= 1
    return shorten(text, length) if length > 1 or length == len(text) else ""


def _place_label(rect: _Rect, width: float, size: tuple[float, float], taken: Sequence[_Rect]) -> tuple[float, float]:
    """Return the corner of a label: above the box, inside of it or below; where it covers the least of the others."""
    x1, y1, _, y2 = rect
    x = min(x1, size[0] - width)
    heights = (y1 - _LABEL_HEIGHT, y1, y2 - _LABEL_HEIGHT, y2)
    inside = [y for y in heights if 0 <= y <= size[1] - _LABEL_HEIGHT] or [0.0]

    def covered(y: float) -> float:
        return sum(_overlap((x, y, x + width, y + _LABEL_HEIGHT), other) for other in taken)

    return x, min(inside, key=covered)  # of equal ones the first


def _overlap(a: _Rect, b: _Rect) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
