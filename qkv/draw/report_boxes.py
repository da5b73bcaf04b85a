"""Object detection on a report page: AP of each class, precision-recall curves, errors by reason, drawn mistakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.draw.bar_chart import Bar, bar_chart
from qkv.draw.line_chart import Axis, line_chart
from qkv.draw.report_answers import safe_text, section, truncation_note
from qkv.draw.series import Point, Series

_MAX_CLASSES = 100
_MAX_CURVES = 12
MAX_PICTURE_BYTES = 1_200_000
"""Size of all drawings together, so that the page stays below 2 MB."""


@dataclass(frozen=True)
class ClassBoxes:
    """The results of one class; a figure of -1 is not defined."""

    name: str
    objects: int
    ap50: float
    mean_ap: float
    curve: Sequence[Point]
    """(recall, precision)"""


@dataclass(frozen=True)
class BoxMistake:
    """A picture with mistakes, drawn."""

    name: str
    drawing: str
    """SVG, see `draw_boxes`."""
    mistakes: Sequence[str]
    """A line of text per mistake."""


@dataclass(frozen=True)
class BoxReport:
    """Results of a detector on pictures."""

    classes: Sequence[ClassBoxes]
    hits: int
    objects: int
    min_score: float
    """Least score of a detection that is counted."""
    false_positives: Mapping[str, int]
    """Reason -> number."""
    missed: Mapping[str, int]
    """Reason -> number."""
    pictures: Sequence[BoxMistake]
    """Some pictures with mistakes, the worst first."""
    wrong_pictures: int
    """Pictures with at least one mistake."""


def boxes_sections(report: BoxReport | None) -> str:
    """Return the parts of the page about boxes."""
    if report is None:
        return ""
    return _classes_section(report) + _curves_section(report) + _errors_section(report) + _pictures_section(report)


def _classes_section(report: BoxReport) -> str:
    shown = report.classes[:_MAX_CLASSES]
    rows = "\n".join(
        f'<tr><th scope="row">{safe_text(one.name, 60)}</th><td class="number">{one.objects:,}</td>'
        f'<td class="number">{_figure(one.ap50)}</td><td class="number">{_figure(one.mean_ap)}</td></tr>'
        for one in shown
    )
    head = "".join(f'<th scope="col" class="number">{name}</th>' for name in ("objects", "AP50", "mAP"))
    return section(
        "Classes",
        "Average precision of each class at IoU 0.5, and its mean over IoU 0.50 to 0.95."
        + truncation_note(len(report.classes) - len(shown), "classes"),
        f'<div class="card"><table><thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>',
    )


def _curves_section(report: BoxReport) -> str:
    """Draw the curves of the classes with the most objects."""
    known = sorted((one for one in report.classes if one.curve), key=lambda one: -one.objects)
    if not known:
        return ""
    chart = line_chart(
        [Series(one.name, one.curve) for one in known[:_MAX_CURVES]],
        "Precision against recall",
        Axis("recall"),
        Axis("precision"),
    )
    return section(
        "Precision and recall",
        "A point of a curve is a least score of detections. A hit has an IoU of at least 0.5."
        + truncation_note(len(known) - _MAX_CURVES, "classes"),
        f'<figure class="card chart">{chart}</figure>',
    )


def _errors_section(report: BoxReport) -> str:
    charts = [
        bar_chart([Bar(reason, count) for reason, count in counts.items()], title)
        for title, counts in (
            (f"False positives: {sum(report.false_positives.values()):,}", report.false_positives),
            (f"Missed objects: {sum(report.missed.values()):,} of {report.objects:,}", report.missed),
        )
    ]
    return section(
        "Errors by reason",
        f"{report.hits:,} of {report.objects:,} objects were found. Detections with a score of at least "
        f"{report.min_score:.2f} are counted; there F1, the balance of precision and recall, is highest.",
        "".join(f'<figure class="card chart">{chart}</figure>' for chart in charts),
    )


def _pictures_section(report: BoxReport) -> str:
    size, shown = 0, []
    for picture in report.pictures:
        if size + len(picture.drawing) <= MAX_PICTURE_BYTES:
            size += len(picture.drawing)
            shown.append(picture)
    if not shown:
        return ""
    cards = "\n".join(
        f'<figure class="card"><h3>{safe_text(one.name)}</h3>\n{one.drawing}'
        f"<p>{'<br>'.join(safe_text(line) for line in one.mistakes)}</p></figure>"
        for one in shown
    )
    return section(
        "Worst pictures",
        "The pictures with the most mistakes. Dashed boxes are true objects, solid ones were found."
        + truncation_note(report.wrong_pictures - len(shown), "pictures with mistakes"),
        f'<div class="groups">{cards}</div>',
    )


def _figure(value: float) -> str:
    return "-" if value < 0 else f"{value:.3f}"
