"""A training run as one HTML file: what was trained, how it learned, what it answers, where it looks.

The file holds all it needs and may do nothing: no script, no request, one style sheet that its
content security policy knows by hash.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from qkv.draw.curve import Axis, curves
from qkv.draw.heatmap import Panel, rectangles
from qkv.draw.series import Point, Series, is_there, smooth
from qkv.draw.style import STYLE
from qkv.draw.text import safe, shorten

Value = str | int | float | bool | None

_LONG = 200  # points from which on a loss is drawn smoothed
_MOST_EXAMPLES = 200
_MOST_ANSWERS = 20
_MOST_CELLS = 6000  # of all heat maps together: about 1 MB
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Answer:
    """One thing the model says."""

    text: str
    probability: float


@dataclass(frozen=True)
class Example:
    """An input, the model's answers from the best down, and the texts that are right."""

    source: str
    answers: Sequence[Answer]
    right: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """Where the model looked at `read` while it wrote `written` (END among them), as one or more matrices."""

    title: str
    written: Sequence[str]
    read: Sequence[str]
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Report:
    """All that the page of a training run shows, as plain data."""

    title: str
    family: str
    parameters: int
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Group (such as model, training) -> name -> value."""
    training: Sequence[Point] = ()
    """(step, loss)"""
    validation: Sequence[Point] = ()
    """(step, loss)"""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Row (such as "test, beam 4") -> metric -> number; a metric that ends in _rate is shown in percent."""
    examples: Sequence[Example] = ()
    pictures: Sequence[Picture] = ()
    note: str = ""
    """A sentence below the title."""
    trained_with: str = ""
    """What the training loss has in it and the validation loss has not, such as "label smoothing 0.1"."""


def report(record: Report) -> str:
    """The page. Long losses are thinned, long lists cut with a word about it: under 2 MB however long the run."""
    title = safe(shorten(record.title, 200))
    sections = [
        _facts(record),
        _settings(record.settings),
        _losses(record.training, record.validation, record.trained_with),
        _rates(record.rates),
        _examples(record.examples),
        _pictures(record.pictures),
    ]
    note = f"<p>{_text(record.note, 1000)}</p>" if record.note else ""
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


def _text(text: str, most: int = 200) -> str:
    """A text of its own direction: one written from right to left leaves its neighbors in place."""
    return f"<bdi>{safe(shorten(text, most))}</bdi>"


def _section(heading: str, introduction: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n<p>{introduction}</p>\n{content}\n</section>\n"


def _facts(record: Report) -> str:
    facts = [("Family", _text(_words(record.family), 60)), ("Parameters", f"{record.parameters:,}")]
    if record.training:
        facts.append(("Steps", f"{record.training[-1][0]:,.0f}"))
    there = [(y, x) for x, y in record.validation if y is not None and is_there((x, y))]
    if there:
        lowest, step = min(there)
        facts.append(("Lowest validation loss", f"{lowest:.4g} <small>at step {step:,.0f}</small>"))
    return '<dl class="facts">' + "".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for n, v in facts) + "</dl>\n"


def _settings(groups: Mapping[str, Mapping[str, Value]]) -> str:
    if not groups:
        return ""
    tables = "\n".join(
        f'<div class="card"><h3>{_text(group)}</h3>\n<table class="settings"><tbody>\n{_setting_rows(values)}\n'
        "</tbody></table></div>"
        for group, values in groups.items()
    )
    return _section("Settings", "What it was built from and how it was trained.", f'<div class="groups">{tables}</div>')


def _setting_rows(values: Mapping[str, Value]) -> str:
    return "\n".join(
        f'<tr><th scope="row">{_text(_words(name))}</th><td>{_text(_write(value))}</td></tr>'
        for name, value in values.items()
    )


def _write(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _losses(training: Sequence[Point], validation: Sequence[Point], trained_with: str) -> str:
    extra = f", {shorten(trained_with, 22)}" if trained_with else ""
    series = [Series(f"training{extra}", training)]
    if len(training) > _LONG:
        smoothed = smooth(training, max(len(training) // 100, 5))
        series = [
            Series(f"training{extra}, each step", training, faint=True),
            Series(f"training{extra}, mean", smoothed),
        ]
    if validation:
        series.append(Series("validation, plain" if trained_with else "validation", validation))
    heights = [y for one in series for x, y in one.points if y is not None and is_there((x, y))]
    steep = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    chart = curves(series, "Loss against step", Axis("step"), Axis("loss", log=steep))
    scale = "The vertical axis is logarithmic: equal ratios take equal room." if steep else "Lower is better."
    if trained_with:
        scale += (
            f" The training loss is that with {_text(trained_with)}, the validation loss is the plain one: "
            "compare each with itself, not with the other."
        )
    return _section("How it learned", scale, f'<figure class="card chart">{chart}</figure>')


def _rates(rates: Mapping[str, Mapping[str, float]]) -> str:
    if not rates:
        return ""
    metrics = list(dict.fromkeys(name for row in rates.values() for name in row))
    head = "".join(f'<th scope="col" class="number">{_text(_words(name))}</th>' for name in metrics)
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th>'
        + "".join(f'<td class="number">{_measure(metric, row.get(metric))}</td>' for metric in metrics)
        + "</tr>"
        for name, row in rates.items()
    )
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return _section("How good it is", "Each answer against the closest right one.", f'<div class="card">{table}</div>')


def _measure(metric: str, value: float | None) -> str:
    if value is None:
        return "none"
    if metric.endswith("_rate"):
        return f"{100 * value:.1f}%"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _examples(examples: Sequence[Example]) -> str:
    if not examples:
        return ""
    bodies = "\n".join(map(_example, examples[:_MOST_EXAMPLES]))
    table = (
        '<table><thead><tr><th scope="col">input</th><th scope="col">right</th><th scope="col">answers</th>'
        f'<th scope="col" class="number">probability</th></tr></thead>\n{bodies}\n</table>'
    )
    return _section(
        "What it answers",
        "The best answers to inputs it was not trained on. ✓ is right, ✗ is a first answer that is not."
        + _more(len(examples) - _MOST_EXAMPLES, "examples"),
        f'<div class="card">{table}</div>',
    )


def _example(example: Example) -> str:
    answers = list(example.answers[:_MOST_ANSWERS])
    right = "<br>".join(_text(text) for text in example.right[:_MOST_ANSWERS])
    rows = [
        f"<td>{_mark(answer, place, example.right)}{_text(answer.text)}</td>"
        f'<td class="number">{_percent(answer.probability)}</td></tr>'
        for place, answer in enumerate(answers)
    ] or ['<td class="other">no answer</td><td></td></tr>']
    span = f' rowspan="{len(rows)}"'
    first = f'<tr><th scope="rowgroup"{span}>{_text(example.source)}</th><td{span}>{right}</td>{rows[0]}'
    return '<tbody class="entry">' + "\n".join([first, *(f"<tr>{row}" for row in rows[1:])]) + "</tbody>"


def _mark(answer: Answer, place: int, right: Sequence[str]) -> str:
    if answer.text in right:
        return '<span class="mark right">✓</span>'
    return '<span class="mark wrong">✗</span>' if place == 0 else '<span class="mark"></span>'


def _percent(probability: float) -> str:
    return "&lt; 0.1%" if 0 <= probability < 0.001 else f"{100 * probability:.1f}%"


def _more(left_out: int, what: str) -> str:
    return f" {left_out:,} more {what} are not shown." if left_out > 0 else ""


def _pictures(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    cells, drawn = 0, []
    for picture in pictures:
        own = len(picture.panels) * len(picture.written) * len(picture.read)
        if cells + own <= _MOST_CELLS:
            cells += own
            drawn.append(_picture(picture))
    return _section(
        "Where it looked",
        "Rows are what it wrote, from top to bottom; columns are what it read. The stronger the color of a cell, the "
        "more of that column went into that row; the number is in its tooltip."
        + _more(len(pictures) - len(drawn), "pictures"),
        f'<div class="pictures">{"".join(drawn)}</div>',
    )


def _picture(picture: Picture) -> str:
    written, read = ([shorten(text, 40) for text in texts] for texts in (picture.written, picture.read))
    panels = [Panel(shorten(p.title, 60), p.values, shorten(p.note, 60)) for p in picture.panels]
    svg = rectangles(panels, written, read, shorten(picture.title, 60))
    return f'<figure class="card heatmap">{svg}</figure>\n'
