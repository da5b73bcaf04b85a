"""`qkv decode pronounce`: the pronouncer on the command line."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.stdin import read_lines
from qkv.cli.shared.warnings import Complaints

if TYPE_CHECKING:
    from qkv.pronunciation import Answer, Pronouncer

NAME = "pronounce"
TABLE, RUNNING = "table", "line"

Dictionary = Annotated[Path | None, typer.Option(help="pronounce: a dictionary in CMU format, asked first.")]
Model = Annotated[Path | None, typer.Option(help="pronounce: a run folder instead of the bundled model.")]
ModelOnly = Annotated[bool, typer.Option("--model-only", help="pronounce: ask no dictionary.")]
Alphabet = Annotated[str | None, typer.Option(help="pronounce: arpabet or ipa.")]
Stress = Annotated[bool, typer.Option("--stress/--no-stress", help="pronounce: with or without stress.")]
LexiconFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="pronounce: table, line (the text, words replaced), or a lexicon: cmu kaldi kaldip mfa mfap pls json tsv.",
    ),
]


@dataclass(frozen=True)
class Wishes:
    """The options that only the pronouncer takes."""

    dictionary: Path | None = None
    model: Path | None = None
    model_only: bool = False
    alphabet: str | None = None
    stress: bool = True
    format: str | None = None

    def refuse(self, run: Path) -> None:
        """Raise if any was given for something else than the pronouncer."""
        usual = asdict(Wishes())
        for name, value in asdict(self).items():
            if value != usual[name]:
                option = "no-stress" if name == "stress" else name.replace("_", "-")
                raise ValueError(f"--{option} is an option of the pronouncer: qkv decode pronounce --model {run}")


def say(inputs: list[str] | None, wishes: Wishes, *, best: int, beams: int, as_json: bool) -> None:
    """Answer every word of the inputs, or of the lines of stdin; what has no answer is told, and the rest is done."""
    from qkv.pronunciation import Pronouncer

    write = _writer(wishes, best, as_json)
    pronouncer = Pronouncer(
        dictionary=wishes.dictionary,
        model=wishes.model,
        model_only=wishes.model_only,
        stress=wishes.stress,
        beams=beams,
    )
    for line in pronouncer.user.bad if pronouncer.user else ():
        _tell(f"left out: {line}")
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    complaints = _Complaints()
    for text in write(complaints.watch(_answers(pronouncer, inputs, best, spaces=wishes.format == RUNNING))):
        sys.stdout.write(text)
    sys.stdout.flush()
    complaints.finish()


def _answers(pronouncer: "Pronouncer", inputs: list[str] | None, best: int, *, spaces: bool) -> Iterator["Answer"]:
    from qkv.pronunciation.pronouncer import WINDOW
    from qkv.pronunciation.text import Token

    def pieces() -> Iterator[Token]:
        for text in _readable(inputs) if inputs else read_lines(_tell):
            yield from (piece for piece in pronouncer.split(text) if spaces or piece.kind != "space")
            if spaces:
                yield Token("\n", "space")

    interactive = not inputs and sys.stdin is not None and sys.stdin.isatty()
    return pronouncer.tokens(pieces(), best, window=1 if interactive else WINDOW)


def _readable(inputs: list[str]) -> Iterator[str]:
    """Arguments whose bytes are no UTF-8 with U+FFFD in their place, as in lines of stdin."""
    return (text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in inputs)


Write = Callable[[Iterable["Answer"]], Iterator[str]]


def _writer(wishes: Wishes, best: int, as_json: bool) -> Write:
    from qkv.pronunciation.answer import ALPHABETS
    from qkv.pronunciation.lexicon import FORMATS, write_lexicon
    from qkv.registry import unknown_name_error

    form, alphabet = wishes.format or TABLE, wishes.alphabet
    if alphabet not in (None, *ALPHABETS):
        raise unknown_name_error("alphabet", alphabet, ALPHABETS)
    if as_json and wishes.format is not None:
        raise ValueError(f"--json and --format {wishes.format} are two forms of output; give one of them")
    if form in FORMATS:
        return lambda answers: write_lexicon(answers, form, alphabet)
    if form not in (TABLE, RUNNING):
        raise unknown_name_error("format", form, (TABLE, RUNNING, *FORMATS))
    symbols = alphabet or ALPHABETS[0]
    if as_json:
        return lambda answers: _records(answers, symbols)
    return lambda answers: _running(answers, symbols) if form == RUNNING else _table(answers, symbols, best)


def _table(answers: Iterable["Answer"], alphabet: str, best: int) -> Iterator[str]:
    """word TAB pronunciation TAB source, and TAB probability where several are asked for."""
    for answer in answers:
        for way in answer.best:
            share = f"\t{way.probability:.4f}" if best > 1 else ""
            yield f"{answer.input}\t{way.write(alphabet)}\t{answer.source}{share}\n"
        if not answer.best:
            yield f"{answer.input}\t\t{answer.source}\n"


def _running(answers: Iterable["Answer"], alphabet: str) -> Iterator[str]:
    """The text again, its words replaced; phones of ARPAbet in braces."""
    for answer in answers:
        said = answer.best[0].write(alphabet) if answer.best else answer.input
        yield f"{{{said}}}" if answer.best and alphabet == "arpabet" else said


def _records(answers: Iterable["Answer"], alphabet: str) -> Iterator[str]:
    """A JSON list, an item a line, written as it comes."""
    start = "[\n"
    for answer in answers:
        yield start + json.dumps(answer.to_record(alphabet), ensure_ascii=False)
        start = ",\n"
    yield "[]\n" if start == "[\n" else "\n]\n"


class _Complaints:
    """About each word without an answer; that a model is missing is said once."""

    def __init__(self) -> None:
        self.others = Complaints()
        self.for_want_of_a_model = 0

    def watch(self, answers: Iterator["Answer"]) -> Iterator["Answer"]:
        from qkv.pronunciation.bundled import MISSING

        for answer in answers:
            if answer.why is not None and answer.why.endswith(MISSING):
                self.for_want_of_a_model += 1
                if self.for_want_of_a_model == 1:
                    _tell(answer.why)
            elif answer.why is not None:
                self.others.tell(answer.why)
            yield answer

    def finish(self) -> None:
        self.others.finish("words")
        if self.for_want_of_a_model > 1:
            _tell(f"{self.for_want_of_a_model:,} words in all need a model")
        if self.for_want_of_a_model:
            raise SystemExit(2)


def _tell(sentence: str) -> None:
    sys.stderr.write(f"qkv: {sentence}\n")
