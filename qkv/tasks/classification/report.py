"""Wrong answers of a classifier for its report, the most confident first, with the images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.data import LabeledExamples
from qkv.draw import Example, Mistakes, ReportAnswer, data_uri, encode_png

MAX_MISTAKES = 50
MAX_SIDE = 128
"""Longest side of an image that is shown."""
MAX_VALUES = 12
"""Values of a point that are shown."""


def make_mistakes(examples: LabeledExamples, probabilities: Tensor, classes: Sequence[str]) -> Mistakes:
    """Return the examples whose most probable class is wrong; `probabilities` are (examples, classes)."""
    best, predicted = probabilities.max(1)
    wrong = (predicted != examples.labels).nonzero()[:, 0]
    ranked = wrong[best[wrong].argsort(descending=True, stable=True)][:MAX_MISTAKES].tolist()
    shown = []
    for index in ranked:
        answers = [ReportAnswer(classes[int(predicted[index])], float(best[index]))]
        image = _image_uri(examples.inputs[index])
        source = f"example {index}" if image else _format_values(examples.inputs[index])
        shown.append(Example(source, answers, [classes[int(examples.labels[index])]], image))
    return Mistakes(shown, len(wrong), len(examples), "The most confident are first." if shown else "")


def _image_uri(example: Tensor) -> str:
    """Return an image as a data: address; empty if the example is no image that a page can show."""
    if example.dim() != 3 or example.shape[0] not in (1, 3) or max(example.shape) > MAX_SIDE:
        return ""
    channels, height, width = example.shape
    pixels = example.movedim(0, 2).to(torch.uint8).contiguous()
    return data_uri(encode_png(bytes(pixels.flatten().tolist()), width, height, channels))


def _format_values(example: Tensor) -> str:
    values = example.flatten().tolist()
    more = ", ..." if len(values) > MAX_VALUES else ""
    return ", ".join(f"{value:g}" for value in values[:MAX_VALUES]) + more
