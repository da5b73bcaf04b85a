"""Pictures of a comparison whose metrics have a size, or a size and a depth, such as length_256_depth_50_accuracy."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.draw import Axis, Panel, Series, line_chart, rectangular_heatmaps

_NAME = re.compile(r"(?P<axis>[a-z]+)_(?P<size>\d+)(?:_depth_(?P<depth>\d+))?_accuracy")


@dataclass(frozen=True)
class SizedAccuracy:
    """Accuracy of a candidate at one size of the test, mean over seeds."""

    axis: str
    """What the size counts, such as length."""
    size: int
    depth: int | None
    """Percent; None: the metric has no depth."""
    value: float


def read_sized(figures: dict[str, dict[str, float]]) -> list[SizedAccuracy]:
    """Return the accuracies of a record whose names have a size, by size."""
    found = []
    for name, spread in figures.items():
        match = _NAME.fullmatch(name)
        if match is not None:
            depth = None if match["depth"] is None else int(match["depth"])
            found.append(SizedAccuracy(match["axis"], int(match["size"]), depth, spread["mean"]))
    return sorted(found, key=lambda one: one.size)


def draw_pictures(records: Sequence[dict[str, Any]], task: str) -> dict[str, str]:
    """Return the SVGs that the metrics allow, by file name: accuracy over size, and a heat map by size and depth."""
    sized = {record["contestant"]: read_sized(record["figures"]) for record in records}
    sized = {name: found for name, found in sized.items() if found}
    if not sized:
        return {}
    chance = next(record["chance"] for record in records if record["figures"])
    pictures = {"sizes.svg": _draw_sizes(sized, task, chance)}
    if all(one.depth is not None for found in sized.values() for one in found):
        pictures["depths.svg"] = _draw_depths(sized, task)
    return pictures


def _draw_sizes(sized: dict[str, list[SizedAccuracy]], task: str, chance: float | None) -> str:
    series = [Series(name, _means(found)) for name, found in sized.items()]
    sizes = [size for one in series for size, _ in one.points]
    if chance is not None and min(sizes) < max(sizes):
        series.append(Series("chance", [(min(sizes), chance), (max(sizes), chance)]))
    axis = next(iter(sized.values()))[0].axis
    return line_chart(series, f"{task}: accuracy by {axis}", Axis(axis, log=min(sizes) > 0), Axis("accuracy"))


def _means(found: Sequence[SizedAccuracy]) -> list[tuple[float, float | None]]:
    """Return (size, mean accuracy over depths)."""
    sizes = dict.fromkeys(one.size for one in found)
    values = {size: [one.value for one in found if one.size == size] for size in sizes}
    return [(size, sum(all_of) / len(all_of)) for size, all_of in values.items()]


def _draw_depths(sized: dict[str, list[SizedAccuracy]], task: str) -> str:
    sizes = sorted({one.size for found in sized.values() for one in found})
    depths = sorted({one.depth or 0 for found in sized.values() for one in found})
    panels = []
    for name, found in sized.items():
        values = {(one.depth, one.size): one.value for one in found}
        rows = [[values.get((depth, size), float("nan")) for size in sizes] for depth in depths]
        shown = [one.value for one in found]
        panels.append(Panel(name, rows, f"{min(shown):.0%} to {max(shown):.0%}"))
    labels = [f"{depth} %" for depth in depths], [f"{size:,}" for size in sizes]
    return rectangular_heatmaps(panels, *labels, f"{task}: accuracy by depth (rows) and length (columns)", per_line=3)
