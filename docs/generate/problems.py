"""A page for each group of worked problems, from the records of `qkv problems all --json`."""

from collections.abc import Iterable
from typing import Any

from docs.generate.slider import slider
from qkv.problems import draw_pictures
from qkv.problems.value_text import format_value

GROUPS = {
    "A": "Units, layers, gradients",
    "B": "Attention",
    "C": "Cost",
    "D": "Linear attention",
    "E": "Sequences",
    "F": "Detection",
}
SHOWN = 8
"""Maximum number of list items on a page."""
Record = dict[str, Any]


def problem_pages(records: Iterable[Record]) -> dict[str, str]:
    """Return file name -> text for the pages and their pictures."""
    found = list(records)
    pages = {"problems/index.md": _contents(found)}
    for letter, title in GROUPS.items():
        mine = [record for record in found if record["id"].startswith(letter)]
        pictures = {record["id"]: draw_pictures(record["id"], record["answer"]) for record in mine if record["answer"]}
        pages |= {f"problems/{name}": svg for drawn in pictures.values() for name, svg in drawn.items()}
        texts = [_section(record, list(pictures.get(record["id"], {}))) for record in mine]
        pages[f"problems/{letter.lower()}.md"] = "\n\n".join([f"# {letter}. {title}", *texts]) + "\n"
    return pages


def _contents(records: list[Record]) -> str:
    slips = sum(record["slip"] is not None for record in records)
    lines = [
        "# Worked problems",
        "",
        f"{len(records)} problems, each with the code that answers it and a hand-written answer. In {slips} of them "
        "the hand-written answer has a mistake, which is named. `qkv problems ID` computes an answer again.",
        "",
        "| | question | result |",
        "|---|---|---|",
        *(
            f"| [{r['id']}]({r['id'][0].lower()}.md#{r['id'].lower()}) | {_cell(r['question'].splitlines()[0])} "
            f"| {_verdict(r)} |"
            for r in records
        ),
    ]
    return "\n".join(lines) + "\n"


def _section(record: Record, pictures: list[str]) -> str:
    parts = [f"## {record['id']}", _prose(record["question"]), f"```python\n{record['call'].strip()}\n```"]
    if record["answer"]:
        rows = [
            f"| {_cell(name)} | {_cell(format_value(value, SHOWN, lines=False))} |"
            for name, value in record["answer"].items()
        ]
        parts.append("\n".join(["| computed | value |", "|---|---|", *rows]))
    parts += [f"![{record['id']}]({name})" for name in pictures]
    parts += [slider()] if record["id"] == "B5" else []
    parts.append(f"By hand: {_prose(record['hand_written'])}")
    if record["slip"]:
        parts.append(f"**The mistake:** {_prose(record['slip'])}.")
    return "\n\n".join([*parts, f"*{_verdict(record)}*"])


def _verdict(record: Record) -> str:
    tick = "✓" if record["ok"] else "✗ not as expected"
    return f"{tick}, mistake by hand" if record["slip"] else tick


def _prose(text: str) -> str:
    return text.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|").replace("\n", " ")
