"""Report of a training run as one HTML file: settings, losses, metrics, predictions and alignments.

The file is self-contained and inert: no scripts, no requests, one style sheet allowed by hash in its content security
policy.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from qkv.draw.heatmap import Panel, rectangular_heatmaps
from qkv.draw.line_chart import Axis, line_chart
from qkv.draw.series import Point, Series, is_drawable, smooth
from qkv.draw.style import STYLE
from qkv.draw.text import escape_text, shorten
from qkv.metrics.display import format_metric, metric_title

Value = str | int | float | bool | None

_SMOOTHING_THRESHOLD = 200  # losses with more points are drawn smoothed
_MAX_EXAMPLES = 200
_MAX_ANSWERS = 20
_MAX_CELLS = 6000  # of all heat maps together, about 1 MB
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class ReportAnswer:
    """A predicted text and its probability."""

    text: str
    probability: float


@dataclass(frozen=True)
class Example:
    """An input, the model's predictions, best first, and the correct texts."""

    source: str
    answers: Sequence[ReportAnswer]
    references: Sequence[str]


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


def report_page(record: TrainingReport) -> str:
    """Return the page; long losses are downsampled and long lists truncated with a note, to stay below 2 MB."""
    title = escape_text(shorten(record.title, 200))
    sections = [
        _facts_section(record),
        _settings_section(record.settings),
        _losses_section(record.training_loss, record.validation_loss, record.training_loss_extra),
        _metrics_section(record.metrics),
        _examples_section(record.examples),
        _alignments_section(record.alignments),
    ]
    note = f"<p>{_safe_text(record.note, 1000)}</p>" if record.note else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
{note}
</header>
{"".join(sections)}</main>
</body>
</html>
"""


def _safe_text(text: str, max_length: int = 200) -> str:
    """Escape and isolate a text, so that right-to-left text does not reorder its neighbors."""
    return f"<bdi>{escape_text(shorten(text, max_length))}</bdi>"


def _section(heading: str, introduction: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n<p>{introduction}</p>\n{content}\n</section>\n"


def _facts_section(record: TrainingReport) -> str:
    facts = [("Family", _safe_text(_as_words(record.family), 60)), ("Parameters", f"{record.parameters:,}")]
    if record.training_loss:
        facts.append(("Steps", f"{record.training_loss[-1][0]:,.0f}"))
    losses = [(y, x) for x, y in record.validation_loss if y is not None and is_drawable((x, y))]
    if losses:
        lowest, step = min(losses)
        facts.append(("Lowest validation loss", f"{lowest:.4g} <small>at step {step:,.0f}</small>"))
    return '<dl class="facts">' + "".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for n, v in facts) + "</dl>\n"


def _settings_section(groups: Mapping[str, Mapping[str, Value]]) -> str:
    if not groups:
        return ""
    tables = "\n".join(
        f'<div class="card"><h3>{_safe_text(group)}</h3>\n<table class="settings"><tbody>\n{_setting_rows(values)}\n'
        "</tbody></table></div>"
        for group, values in groups.items()
    )
    return _section("Settings", "Model, data and training settings.", f'<div class="groups">{tables}</div>')


def _setting_rows(values: Mapping[str, Value]) -> str:
    return "\n".join(
        f'<tr><th scope="row">{_safe_text(_as_words(name))}</th><td>{_safe_text(_format_value(value))}</td></tr>'
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
            f" The training loss includes {_safe_text(extra_terms)}, the validation loss does not: "
            "the two cannot be compared."
        )
    return _section("Losses", scale, f'<figure class="card chart">{chart}</figure>')


def _metrics_section(metrics: Mapping[str, Mapping[str, float]]) -> str:
    if not metrics:
        return ""
    names = list(dict.fromkeys(name for row in metrics.values() for name in row))
    head = "".join(f'<th scope="col" class="number">{_safe_text(metric_title(name))}</th>' for name in names)
    rows = "\n".join(
        f'<tr><th scope="row">{_safe_text(title)}</th>'
        + "".join(f'<td class="number">{format_metric(name, row.get(name))}</td>' for name in names)
        + "</tr>"
        for title, row in metrics.items()
    )
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return _section(
        "Metrics", "Each prediction is compared with its closest reference.", f'<div class="card">{table}</div>'
    )


def _examples_section(examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    bodies = "\n".join(map(_example_rows, examples[:_MAX_EXAMPLES]))
    table = (
        '<table><thead><tr><th scope="col">input</th><th scope="col">references</th><th scope="col">predictions</th>'
        f'<th scope="col" class="number">probability</th></tr></thead>\n{bodies}\n</table>'
    )
    return _section(
        "Predictions",
        "The best predictions for inputs that were not trained on. ✓ is correct, ✗ is a wrong first prediction."
        + _truncation_note(len(examples) - _MAX_EXAMPLES, "examples"),
        f'<div class="card">{table}</div>',
    )


def _example_rows(example: Example) -> str:
    answers = list(example.answers[:_MAX_ANSWERS])
    references = "<br>".join(_safe_text(text) for text in example.references[:_MAX_ANSWERS])
    rows = [
        f"<td>{_mark(answer, rank, example.references)}{_safe_text(answer.text)}</td>"
        f'<td class="number">{_format_percent(answer.probability)}</td></tr>'
        for rank, answer in enumerate(answers)
    ] or ['<td class="other">no prediction</td><td></td></tr>']
    span = f' rowspan="{len(rows)}"'
    first = f'<tr><th scope="rowgroup"{span}>{_safe_text(example.source)}</th><td{span}>{references}</td>{rows[0]}'
    return '<tbody class="entry">' + "\n".join([first, *(f"<tr>{row}" for row in rows[1:])]) + "</tbody>"


def _mark(answer: ReportAnswer, rank: int, references: Sequence[str]) -> str:
    if answer.text in references:
        return '<span class="mark right">✓</span>'
    return '<span class="mark wrong">✗</span>' if rank == 0 else '<span class="mark"></span>'


def _format_percent(probability: float) -> str:
    return "&lt; 0.1%" if 0 <= probability < 0.001 else f"{100 * probability:.1f}%"


def _truncation_note(left_out: int, what: str) -> str:
    return f" {left_out:,} more {what} are not shown." if left_out > 0 else ""


def _alignments_section(figures: Sequence[AlignmentFigure]) -> str:
    if not figures:
        return ""
    cells, drawn = 0, []
    for figure in figures:
        size = len(figure.panels) * len(figure.target_tokens) * len(figure.source_tokens)
        if cells + size <= _MAX_CELLS:
            cells += size
            drawn.append(_alignment_figure(figure))
    return _section(
        "Alignments",
        "Rows are target tokens, from top to bottom; columns are source tokens. A stronger color is a larger attention "
        "weight; its value is in the tooltip." + _truncation_note(len(figures) - len(drawn), "figures"),
        f'<div class="pictures">{"".join(drawn)}</div>',
    )


def _alignment_figure(figure: AlignmentFigure) -> str:
    targets = [shorten(text, 40) for text in figure.target_tokens]
    sources = [shorten(text, 40) for text in figure.source_tokens]
    panels = [Panel(shorten(p.title, 60), p.values, shorten(p.note, 60)) for p in figure.panels]
    svg = rectangular_heatmaps(panels, targets, sources, shorten(figure.title, 60))
    return f'<figure class="card heatmap">{svg}</figure>\n'
