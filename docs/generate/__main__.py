"""Collect all pages of the site in one folder: `python -m docs.generate build/docs [--problems FILE.json] [ID ...]`.

Written pages are copied, with pictures and costs put in where they are marked; pages of problems come from what
`qkv problems --json` printed (it is run unless a file of its output is given), the reference from docstrings.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from docs.generate.mechanisms import fill_attention, fill_positions
from docs.generate.problems import problem_pages
from docs.generate.reference import reference_pages

DOCS = Path(__file__).parent.parent
FIRST = "reference/attention.md"
"""Of the reference: it has no page of contents."""


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate")
    parser.add_argument("out", type=Path)
    parser.add_argument("ids", nargs="*", help="only these problems")
    parser.add_argument("--problems", type=Path, help="what qkv problems --json printed")
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    shutil.copytree(DOCS / "images", given.out / "images")
    records = json.loads(given.problems.read_text() if given.problems else _solve(given.ids))
    pages: dict[str, str] = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    pages |= fill_attention(DOCS / "attention")
    pages |= fill_positions(DOCS / "positions")
    pages |= problem_pages(records)
    pages |= reference_pages()
    pages["index.md"] = _linked(pages["index.md"], {"Worked problems": "problems/index.md", "Reference": FIRST})
    for name, text in pages.items():
        path = given.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(pages)} files in {given.out}\n")


def _linked(text: str, pages: dict[str, str]) -> str:
    """The first page with links to pages that are only made here, for which it has their titles in bold."""
    for title, page in pages.items():
        if text.count(f"**{title}**") != 1:
            raise ValueError(f"index.md must have **{title}** once")
        text = text.replace(f"**{title}**", f"[{title}]({page})")
    return text


def _solve(ids: list[str]) -> str:
    code = "from qkv.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "problems", *ids, "--json"], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


if __name__ == "__main__":
    main()
