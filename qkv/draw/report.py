"""Report of a training run as one HTML file: metrics, losses, wrong answers, predictions, alignments and settings.

The file is self-contained and inert, see `qkv.draw.page`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qkv.draw.heatmap import Panel, rectangular_heatmaps
from qkv.draw.line_chart import Axis, line_chart
from qkv.draw.page import html_page
from qkv.draw.report_answers import (
    ConfusionTable,
    Example,
    Mistakes,
    confusion_section,
    examples_section,
    mistakes_section,
    safe_text,
    section,
    truncation_note,
)
from qkv.draw.report_boxes import BoxReport, boxes_sections
from qkv.draw.series import Point, Series, is_drawable, smooth
from qkv.draw.text import shorten
from qkv.metrics.display import format_metric, metric_title

Value = str | int | float | bool | None

_SMOOTHING_THRESHOLD = 200  # losses with more points are drawn smoothed
_MAX_CELLS = 6000  # of all heat maps together, about 1 MB


@dataclass(frozen=True)
class AlignmentFigure:
    """Attention from target tokens (END included) to source tokens, as one or more matrices."""

    title: str
    target_tokens: Sequence[str]
    source_tokens: Sequence[str]
    panels: Sequence[Panel]


@dataclass(frozen=True)
class TrainingReport:
    """Contents of the page of a training run, as plain data."""

    title: str
    family: str
    parameters: int
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Group (such as model or training) -> name -> value."""
    training_loss: Sequence[Point] = ()
    """(step, loss)"""
    validation_loss: Sequence[Point] = ()
    """(step, loss)"""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Row (such as "test, beam 4") -> metric -> value; shares are shown in percent."""
    examples: Sequence[Example] = ()
    alignments: Sequence[AlignmentFigure] = ()
    note: str = ""
    """A sentence below the title."""
    training_loss_extra: str = ""
    """Part of the training loss that the validation loss does not have, such as "label smoothing 0.1"."""
    headline: str = ""
    """Metric of the first card, from the last row; empty: none."""
    confusion: ConfusionTable | None = None
    mistakes: Mistakes | None = None
    boxes: BoxReport | None = None
    examples_title: str = "Predictions"
    examples_note: str = "The best predictions for inputs that were not trained on."


def report_page(record: TrainingReport) -> str:
    """Return the page; long losses are downsampled and long lists truncated with a note, to stay below 2 MB."""
    sections = [
        _facts_section(record),
        _losses_section(record.training_loss, record.validation_loss, record.training_loss_extra),
        _metrics_section(record.metrics),
        boxes_sections(record.boxes),
        confusion_section(record.confusion),
        mistakes_section(record.mistakes),
        examples_section(record.examples, record.examples_title, record.examples_note),
        _alignments_section(record.alignments),
        _settings_section(record.settings),
    ]
    note = f"<p>{safe_text(record.note, 1000)}</p>" if record.note else ""
    return html_page(record.title, note, "".join(sections))


def _facts_section(record: TrainingReport) -> str:
    facts = _headline_facts(record)
    facts += [("Family", safe_text(_as_words(record.family), 60)), ("Parameters", f"{record.parameters:,}")]
    if record.training_loss:
        facts.append(("Steps", f"{record.training_loss[-1][0]:,.0f}"))
    losses = [(y, x) for x, y in record.validation_loss if y is not None and is_drawable((x, y))]
    if losses:
        lowest, step = min(losses)
        facts.append(("Lowest validation loss", f"{lowest:.4g} <small>at step {step:,.0f}</small>"))
    return '<dl class="facts">' + "".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for n, v in facts) + "</dl>\n"


def _headline_facts(record: TrainingReport) -> list[tuple[str, str]]:
    """Return the card of the most important metric, with the row that it is from."""
    if not record.headline or not record.metrics:
        return []
    row, values = list(record.metrics.items())[-1]
    title = metric_title(record.headline).capitalize()
    value = format_metric(record.headline, values.get(record.headline))
    return [(safe_text(title), f"{value} <small>{safe_text(row)}</small>")]


def _settings_section(groups: Mapping[str, Mapping[str, Value]]) -> str:
    if not groups:
        return ""
    tables = "\n".join(
        f'<div class="card"><h3>{safe_text(group)}</h3>\n<table class="settings"><tbody>\n{_setting_rows(values)}\n'
        "</tbody></table></div>"
        for group, values in groups.items()
    )
    return section("Settings", "Model, data and training settings.", f'<div class="groups">{tables}</div>')


def _setting_rows(values: Mapping[str, Value]) -> str:
    return "\n".join(
        f'<tr><th scope="row">{safe_text(_as_words(name))}</th><td>{safe_text(_format_value(value))}</td></tr>'
        for name, value in values.items()
    )


def _format_value(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_words(name: str) -> str:
    return name.replace("_", " ")


def _losses_section(training: Sequence[Point], validation: Sequence[Point], extra_terms: str) -> str:
    extra = f", {shorten(extra_terms, 22)}" if extra_terms else ""
    series = [Series(f"training{extra}", training)]
    if len(training) > _SMOOTHING_THRESHOLD:
        smoothed = smooth(training, max(len(training) // 100, 5))
        series = [
            Series(f"training{extra}, each step", training, faint=True),
            Series(f"training{extra}, mean", smoothed),
        ]
    if validation:
        series.append(Series("validation, plain" if extra_terms else "validation", validation))
    heights = [y for one in series for x, y in one.points if y is not None and is_drawable((x, y))]
    log_scale = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    chart = line_chart(series, "Loss against step", Axis("step"), Axis("loss", log=log_scale))
    scale = "The vertical axis is logarithmic." if log_scale else "Lower is better."
    if extra_terms:
        scale += (
            f" The training loss includes {safe_text(extra_terms)}, the validation loss does not: "
            "the two cannot be compared."
        )
    return section("Losses", scale, f'<figure class="card chart">{chart}</figure>')


def _metrics_section(metrics: Mapping[str, Mapping[str, float]]) -> str:
    if not metrics:
        return ""
    names = list(dict.fromkeys(name for row in metrics.values() for name in row))
    head = "".join(f'<th scope="col" class="number">{safe_text(metric_title(name))}</th>' for name in names)
    rows = "\n".join(
        f'<tr><th scope="row">{safe_text(title)}</th>'
        + "".join(f'<td class="number">{format_metric(name, row.get(name))}</td>' for name in names)
        + "</tr>"
        for title, row in metrics.items()
    )
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return section(
        "Metrics",
        "Metrics of the finished model. A prediction with several references is compared with the closest.",
        f'<div class="card">{table}</div>',
    )


def _alignments_section(figures: Sequence[AlignmentFigure]) -> str:
    if not figures:
        return ""
    cells, drawn = 0, []
    for figure in figures:
        size = len(figure.panels) * len(figure.target_tokens) * len(figure.source_tokens)
        if cells + size <= _MAX_CELLS:
            cells += size
            drawn.append(_alignment_figure(figure))
    return section(
        "Alignments",
        "Rows are target tokens, from top to bottom; columns are source tokens. A stronger color is a larger attention "
        "weight; its value is in the tooltip." + truncation_note(len(figures) - len(drawn), "figures"),
        f'<div class="pictures">{"".join(drawn)}</div>',
    )


def _alignment_figure(figure: AlignmentFigure) -> str:
    targets = [shorten(text, 40) for text in figure.target_tokens]
    sources = [shorten(text, 40) for text in figure.source_tokens]
    panels = [Panel(shorten(p.title, 60), p.values, shorten(p.note, 60)) for p in figure.panels]
    svg = rectangular_heatmaps(panels, targets, sources, shorten(figure.title, 60))
    return f'<figure class="card heatmap">{svg}</figure>\n'
