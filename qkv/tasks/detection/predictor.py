"""Find the objects of image files and folders, for `qkv predict`.

With `--json` the results are those of COCO, which pycocotools loads: an entry per object with

    image_id       number of the picture among all inputs, from 1
    category_id    number of the class in the order of training, from 1
    bbox           [x, y, width, height] in pixels of the file
    score          from 0 to 1

and, for readers, file_name and category.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qkv.data.files.image_files import image_shape, list_images
from qkv.draw import DrawnBox, draw_boxes
from qkv.draw.boxes import LONGEST
from qkv.errors import QkvError
from qkv.inference import ObjectFinder, PredictOptions, Predictor
from qkv.inference.detect import MIN_SCORE, read_picture


class BoxPredictor(Predictor):
    """Find objects. An input is an image file or a folder of them."""

    batch_size = 8
    draws = True
    columns = ("input", "label", "score", "x1", "y1", "x2", "y2")

    def __init__(self, finder: ObjectFinder, options: PredictOptions):
        options.require_used(None)
        if options.best != 1:
            raise ValueError(
                f"--best {options.best} has no effect: all objects are printed; raise --min-score for fewer"
            )
        self.finder = finder
        self.min_score = MIN_SCORE if options.min_score is None else options.min_score
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"--min-score must be from 0 to 1, got {self.min_score}")
        self._numbers = {name: number for number, name in enumerate(finder.classes)}

    @property
    def reads_pictures(self) -> bool:
        """Whether an input is the path of a picture."""
        return True

    def expand(self, text: str) -> Iterable[str]:
        """Return the images of a folder."""
        try:
            found = [str(file) for file in list_images(Path(text))] if Path(text).is_dir() else []
        except (OSError, ValueError):  # `check` raises it again, for this input alone
            found = []
        return found or (text,)

    def check(self, text: str) -> None:
        """Raise ValueError unless the text is the path of an image."""
        try:
            path = Path(text)
            if path.is_dir():
                raise ValueError(f"the folder {path} has no images")
            image_shape(path)
        except (QkvError, OSError) as error:
            raise ValueError(str(error)) from None

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the objects of each picture, the surest first; one that cannot be decoded has an error instead."""
        records = []
        for text, index in zip(texts, indices, strict=True):
            try:
                found = self.finder.find(text, min_score=self.min_score)
            except QkvError as error:
                records.append(self.failed(text, str(error)))
                continue
            objects = [{"label": one.label, "score": one.score, "box": list(one.box)} for one in found]
            records.append({"input": text, "image_id": index + 1, "objects": objects, "error": None})
        return records

    def format(self, record: dict[str, Any]) -> str:
        """Return `input TAB label TAB score TAB x1,y1,x2,y2` lines."""
        lines = [
            f"{record['input']}\t{one['label']}\t{one['score']:.2f}\t{','.join(f'{edge:.1f}' for edge in one['box'])}\n"
            for one in record["objects"]
        ]
        return "".join(lines) or f"{record['input']}\tnothing found\n"

    def rows(self, record: dict[str, Any]) -> Sequence[tuple[str, ...]]:
        """Return a row per object; a picture without objects has one with empty cells."""
        found = [
            (record["input"], one["label"], f"{one['score']:.4f}", *(f"{edge:.1f}" for edge in one["box"]))
            for one in record["objects"]
        ]
        return found or [(record["input"], *("" for _ in self.columns[1:]))]

    def to_json(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return COCO results; pictures without objects have no entry."""
        return [
            {
                "image_id": record["image_id"],
                "category_id": self._numbers[one["label"]] + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": one["score"],
                "file_name": record["input"],
                "category": one["label"],
            }
            for record in records
            for one in record["objects"]
            for x1, y1, x2, y2 in [one["box"]]
        ]

    def draw(self, record: dict[str, Any]) -> str:
        """Return the picture with the boxes of its objects."""
        path = Path(record["input"])
        _, height, width = image_shape(path)
        _, pixels = read_picture(path, min(LONGEST, max(height, width)))
        scale = [pixels.shape[2] / width, pixels.shape[1] / height] * 2
        boxes = []
        for one in reversed(record["objects"]):  # the surest on top
            x1, y1, x2, y2 = (edge * factor for edge, factor in zip(one["box"], scale, strict=True))
            boxes.append(DrawnBox(one["label"], (x1, y1, x2, y2), one["score"], self._numbers[one["label"]]))
        return draw_boxes(pixels.movedim(0, 2).numpy(), boxes, path.name)

    def failed(self, text: str, error: str) -> dict[str, Any]:
        """Return a record without objects."""
        return {"input": text, "image_id": None, "objects": [], "error": error}
