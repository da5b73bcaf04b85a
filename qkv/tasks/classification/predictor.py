"""Predict the class of points typed as values, and of images in files and folders."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.data.files.image_files import fit_image, image_shape, is_image_file, list_images, read_image
from qkv.data.files.images import is_image_array, read_image_arrays
from qkv.data.files.points import parse_numbers
from qkv.errors import QkvError
from qkv.inference import AnswerPredictor, PredictOptions


class ClassPredictor(AnswerPredictor):
    """Predict classes.

    An input is a line of values. For a model of images it may be an image file, an .npz or IDX file, or a folder of
    images, too; images are given the shape that the model takes.
    """

    def __init__(
        self,
        probabilities: Callable[[Tensor], Tensor],
        classes: tuple[str, ...],
        shape: tuple[int, ...],
        options: PredictOptions,
    ):
        super().__init__(options.best)
        self.probabilities, self.classes, self.shape, self.options = probabilities, classes, shape, options
        self._takes_images = len(shape) == 3
        self._arrays: dict[str, Tensor] = {}
        """Images of .npz and IDX files, by the names that `expand` gave them."""
        self._examples: dict[str, Tensor] = {}
        """Examples that were checked and wait to be predicted."""
        self._has_told = False

    @property
    def reads_pictures(self) -> bool:
        """Whether an input may be the path of a picture."""
        return self._takes_images

    def expand(self, text: str) -> Iterable[str]:
        """Return the images of a folder or of a file that holds several."""
        path = Path(text)
        try:
            if not self._takes_images or not path.exists() or is_image_file(path):
                return (text,)
            if path.is_dir():
                return [str(file) for file in list_images(path)] or (text,)
            if is_image_array(path):
                return self._open_arrays(path)
        except (QkvError, OSError, ValueError):  # `check` raises it again, for this input alone
            pass
        return (text,)

    def _open_arrays(self, path: Path) -> list[str]:
        found = {
            f"{path}{':' if name else ''}{name}[{index}]": image
            for name, images in read_image_arrays(path).items()
            for index, image in enumerate(images)
        }
        self._arrays |= found
        return list(found)

    def check(self, text: str) -> None:
        """Raise ValueError unless the text is one example."""
        try:
            self._examples[text] = self._read(text)
        except QkvError as error:
            raise ValueError(str(error)) from None

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the most probable classes; an example whose probabilities are not finite has an error instead."""
        examples = [self._examples[text] if text in self._examples else self._read(text) for text in texts]
        self._examples = {}
        found = self.probabilities(torch.stack(examples))
        ranked = found.argsort(descending=True, stable=True)[:, : self.best].tolist()
        records = []
        for text, probabilities, classes in zip(texts, found, ranked, strict=True):
            if probabilities.isfinite().all():
                answers = [{"text": self.classes[c], "probability": float(probabilities[c])} for c in classes]
                records.append({"input": text, "answers": answers, "error": None})
            else:
                records.append(self.failed(text, f"{text[:40]!r} has values too large for a finite prediction"))
        return records

    def _read(self, text: str) -> Tensor:
        if text in self._arrays:
            image = self._arrays[text]
            if tuple(image.shape) != self.shape:
                self._tell_conversion()
            return fit_image(image, self.shape).double()
        if self._takes_images and _may_be_a_path(text):
            return self._read_path(Path(text)).double()
        return self._parse(text)

    def _read_path(self, path: Path) -> Tensor:
        if path.is_dir():
            raise ValueError(f"the folder {path} has no images")
        if path.is_file() and not is_image_file(path):
            read_image_arrays(path)  # `expand` could not, so this raises
        if image_shape(path) != self.shape:
            self._tell_conversion()
        return read_image(path, self.shape)

    def _parse(self, text: str) -> Tensor:
        """Read the values of an example."""
        numbers = parse_numbers(text)
        if len(numbers) != prod(self.shape):
            raise ValueError(f"{text[:40]!r} has {len(numbers)} values, but the model takes {prod(self.shape)}")
        return torch.tensor(numbers, dtype=torch.float64).view(self.shape)

    def _tell_conversion(self) -> None:
        """Say once what happens to images of another size or color."""
        if not self._has_told:
            channels, height, width = self.shape
            color = "grayscale" if channels == 1 else "color"
            self.options.warn(f"the model takes {color} images of {height} x {width} pixels; others are converted")
            self._has_told = True


def _may_be_a_path(text: str) -> bool:
    """Return whether a text names a file or ends like an image; a line of values is too long for a name."""
    try:
        return is_image_file(Path(text)) or text.endswith(".npz") or Path(text).exists()
    except (OSError, ValueError):
        return False
