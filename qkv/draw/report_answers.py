"""Answers of a model on its report page: confusion matrix, wrong answers and examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.text import escape_text, shorten

_MAX_EXAMPLES = 200
_MAX_ANSWERS = 20
_MAX_CLASSES = 40


@dataclass(frozen=True)
class ReportAnswer:
    """A predicted text and its probability; None: it has none."""

    text: str
    probability: float | None


@dataclass(frozen=True)
class Example:
    """An input, the model's predictions, best first, and the correct texts."""

    source: str
    answers: Sequence[ReportAnswer]
    references: Sequence[str]
    image: str = ""
    """The input as a data: address, see `data_uri`; empty: it is no image."""


@dataclass(frozen=True)
class Mistakes:
    """Wrong answers of a model."""

    examples: Sequence[Example]
    """Some of them."""
    wrong: int
    """How many there are in all."""
    checked: int
    """Answers that were checked."""
    note: str = ""
    """A sentence about the order or the meaning of the examples."""


@dataclass(frozen=True)
class ConfusionTable:
    """Counts of (true class, predicted class)."""

    counts: Sequence[Sequence[int]]
    classes: Sequence[str]


def safe_text(text: str, max_length: int = 200) -> str:
    """Escape and isolate a text, so that right-to-left text does not reorder its neighbors."""
    return f"<bdi>{escape_text(shorten(text, max_length))}</bdi>"


def section(heading: str, introduction: str, content: str) -> str:
    """Return a part of the page."""
    return f"<section>\n<h2>{heading}</h2>\n<p>{introduction}</p>\n{content}\n</section>\n"


def confusion_section(table: ConfusionTable | None) -> str:
    """Return the confusion matrix; right answers are on its diagonal."""
    if table is None:
        return ""
    shown = range(min(len(table.classes), _MAX_CLASSES))
    head = "".join(f'<th scope="col" class="number">{safe_text(table.classes[column], 40)}</th>' for column in shown)
    rows = "\n".join(
        f'<tr><th scope="row">{safe_text(table.classes[row], 40)}</th>'
        + "".join(_count_cell(table.counts[row][column], right=row == column) for column in shown)
        + "</tr>"
        for row in shown
    )
    content = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return section(
        "Confusion matrix",
        "Rows are true classes, columns are predicted ones."
        + truncation_note(len(table.classes) - len(shown), "classes"),
        f'<div class="card">{content}</div>',
    )


def _count_cell(count: int, *, right: bool) -> str:
    mark = "right" if right else "wrong"
    return f'<td class="number {mark}">{count:,}</td>' if count else '<td class="number other">.</td>'


def mistakes_section(mistakes: Mistakes | None) -> str:
    """Return the wrong answers with the right ones."""
    if mistakes is None:
        return ""
    summary = f"{mistakes.wrong:,} of {mistakes.checked:,} answers that were checked are wrong."
    if mistakes.note:
        summary += f" {safe_text(mistakes.note, 400)}"
    shown = mistakes.examples[:_MAX_EXAMPLES]
    summary += truncation_note(mistakes.wrong - len(shown), "wrong answers")
    table = f'<div class="card">{_examples_table(shown)}</div>' if shown else ""
    return section("Wrong answers", summary, table)


def examples_section(examples: Sequence[Example], title: str, note: str) -> str:
    """Return inputs with predictions."""
    if not examples:
        return ""
    has_references = any(example.references for example in examples)
    marks = " ✓ is correct, ✗ is a wrong first prediction." if has_references else ""
    return section(
        safe_text(title),
        safe_text(note, 400) + marks + truncation_note(len(examples) - _MAX_EXAMPLES, "examples"),
        f'<div class="card">{_examples_table(examples[:_MAX_EXAMPLES])}</div>',
    )


def _examples_table(examples: Sequence[Example]) -> str:
    bodies = "\n".join(map(_example_rows, examples))
    return (
        '<table><thead><tr><th scope="col">input</th><th scope="col">references</th><th scope="col">predictions</th>'
        f'<th scope="col" class="number">probability</th></tr></thead>\n{bodies}\n</table>'
    )


def _example_rows(example: Example) -> str:
    answers = list(example.answers[:_MAX_ANSWERS])
    references = "<br>".join(safe_text(text) for text in example.references[:_MAX_ANSWERS])
    rows = [
        f"<td>{_mark(answer, rank, example.references)}{safe_text(answer.text)}</td>"
        f'<td class="number">{_format_percent(answer.probability)}</td></tr>'
        for rank, answer in enumerate(answers)
    ] or ['<td class="other">no prediction</td><td></td></tr>']
    span = f' rowspan="{len(rows)}"'
    image = f'<img class="thumbnail" alt="" src="{escape_text(example.image)}" />' if example.image else ""
    first = (
        f'<tr><th scope="rowgroup"{span}>{image}{safe_text(example.source)}</th><td{span}>{references}</td>{rows[0]}'
    )
    return '<tbody class="entry">' + "\n".join([first, *(f"<tr>{row}" for row in rows[1:])]) + "</tbody>"


def _mark(answer: ReportAnswer, rank: int, references: Sequence[str]) -> str:
    if not references:
        return ""
    if answer.text in references:
        return '<span class="mark right">✓</span>'
    return '<span class="mark wrong">✗</span>' if rank == 0 else '<span class="mark"></span>'


def _format_percent(probability: float | None) -> str:
    if probability is None:
        return ""
    return "&lt; 0.1%" if 0 <= probability < 0.001 else f"{100 * probability:.1f}%"


def truncation_note(left_out: int, what: str) -> str:
    """Return a sentence about what is left out; empty if nothing is."""
    return f" {left_out:,} more {what} are not shown." if left_out > 0 else ""
