"""Collect all pages of the site in one folder: `python -m docs.generate build [--problems FILE.json] [ID ...]`.

Writes build/docs and build/mkdocs.yml. Written pages are copied; their formulas become MathML, and pictures and costs
are inserted where they are marked. Pages of problems come from the output of `qkv problems all --json` (run unless
`--problems` names a file with its output), reference pages from docstrings.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from docs.generate.formulas import to_mathml
from docs.generate.mechanisms import fill_attention, fill_positions
from docs.generate.menu import menu
from docs.generate.problems import problem_pages
from docs.generate.reference import reference_pages

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate")
    parser.add_argument("out", type=Path)
    parser.add_argument("ids", nargs="*", help="only these problems")
    parser.add_argument("--problems", type=Path, help="output of qkv problems all --json")
    given = parser.parse_args()
    docs = given.out / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    docs.mkdir(parents=True)
    for folder in ("images", "theme"):
        shutil.copytree(DOCS / folder, docs / folder)
    pages = collect_pages(json.loads(given.problems.read_text() if given.problems else _solve(given.ids)))
    for name, text in pages.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (given.out / "mkdocs.yml").write_text(settings([name for name in pages if name.endswith(".md")]))
    sys.stdout.write(f"{len(pages)} files in {docs}\n")


def collect_pages(records: list[dict[str, object]]) -> dict[str, str]:
    """Return file name -> text for every page and generated picture; `records` are the answered problems."""
    pages = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    pages["attention.svg"] = (DOCS / "attention.svg").read_text()
    pages |= fill_attention(DOCS / "attention")
    pages |= fill_positions(DOCS / "positions")
    pages |= problem_pages(records)
    pages |= reference_pages()
    pages["index.md"] = link_generated(pages["index.md"])
    return {name: to_mathml(text) if name.endswith(".md") else text for name, text in pages.items()}


def link_generated(text: str) -> str:
    """Return index.md with links to pages that exist only on the site, whose titles it has in bold."""
    for title, page in {"Worked problems": "problems/index.md", "Reference": "reference/index.md"}.items():
        if text.count(f"**{title}**") != 1:
            raise ValueError(f"index.md must have **{title}** once")
        text = text.replace(f"**{title}**", f"[{title}]({page})")
    return text


def settings(pages: list[str]) -> str:
    """Return mkdocs.yml with the menu of `pages` added."""
    nav = yaml.safe_dump({"nav": menu(pages)}, sort_keys=False, allow_unicode=True)
    return (ROOT / "mkdocs.yml").read_text().replace("[..]", f"[{ROOT}]") + nav


def _solve(ids: list[str]) -> str:
    code = "from qkv.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "problems", *(ids or ["all"]), "--json"], stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


if __name__ == "__main__":
    main()
