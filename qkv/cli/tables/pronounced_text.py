"""Output of `qkv pronounce`: words alone, and the tokens of sentences, as a table, a line or JSON."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from qkv.pronunciation import ReadToken, WordAnswer

Answer = Union["WordAnswer", "ReadToken"]
"""A word alone, or a token of a sentence."""
Writer = Callable[[Iterable[Answer]], Iterator[str]]

TABLE, LINE, SSML = "table", "line", "ssml"


def make_writer(form: str | None, alphabet: str | None, best: int, *, as_json: bool) -> Writer:
    """Return what formats answers as text; a lexicon takes words alone, SSML takes tokens alone."""
    from qkv.errors import unknown_name_error
    from qkv.pronunciation import write_lexicon, write_ssml
    from qkv.pronunciation.answer import ALPHABETS
    from qkv.pronunciation.lexicon import FORMATS

    if alphabet not in (None, *ALPHABETS):
        raise unknown_name_error("alphabet", alphabet, ALPHABETS)
    if as_json and form is not None:
        raise ValueError(f"--json and --format {form} are two output formats; give one of them")
    if form in FORMATS:
        return lambda answers: write_lexicon(_words(answers), str(form), alphabet)
    if form not in (None, TABLE, LINE, SSML):
        raise unknown_name_error("format", form, (TABLE, LINE, SSML, *FORMATS))
    if form == SSML:
        return lambda answers: write_ssml(_tokens(answers), alphabet)
    symbols = alphabet or ALPHABETS[0]
    if as_json:
        return lambda answers: _write_json(answers, symbols)
    if form == LINE:
        return lambda answers: _write_line(answers, symbols)
    return lambda answers: _write_table(answers, symbols, best)


def _words(answers: Iterable[Answer]) -> Iterator["WordAnswer"]:
    from qkv.pronunciation import WordAnswer

    return (answer for answer in answers if isinstance(answer, WordAnswer))


def _tokens(answers: Iterable[Answer]) -> Iterator["ReadToken"]:
    from qkv.pronunciation import WordAnswer

    return (answer for answer in answers if not isinstance(answer, WordAnswer))


def spoken_answers(answer: Answer) -> list["WordAnswer"]:
    """Return the answer of each word that is said; of a silent token, the answer of the token."""
    from qkv.pronunciation import WordAnswer

    if isinstance(answer, WordAnswer):
        return [answer]
    return [one.answer for one in answer.words] or [answer.to_answer()]


def _is_space(answer: Answer) -> bool:
    token = getattr(answer, "token", None)
    return token is not None and token.kind == "space"


def _write_table(answers: Iterable[Answer], alphabet: str, best: int) -> Iterator[str]:
    """Yield word TAB pronunciation TAB source, and TAB probability where several are wanted."""
    for one in answers:
        if not _is_space(one):
            yield from (_rows(answer, alphabet, best) for answer in spoken_answers(one))


def _rows(answer: "WordAnswer", alphabet: str, best: int) -> str:
    rows = ""
    for way in answer.best:
        probability = f"\t{way.probability:.4f}" if best > 1 else ""
        rows += f"{answer.input}\t{way.to_text(alphabet)}\t{answer.source}{probability}\n"
    return rows or f"{answer.input}\t\t{answer.source}\n"


def _write_line(answers: Iterable[Answer], alphabet: str) -> Iterator[str]:
    """Yield the text with its words replaced; ARPAbet phones in braces."""
    for one in answers:
        spoken = spoken_answers(one)
        if not all(answer.best for answer in spoken):
            yield getattr(one, "text", "") or getattr(one, "input", "")
            continue
        phones = [answer.best[0].to_text(alphabet) for answer in spoken]
        yield " ".join(f"{{{text}}}" if alphabet == "arpabet" else text for text in phones)


def _write_json(answers: Iterable[Answer], alphabet: str) -> Iterator[str]:
    """Yield a JSON list, one item per line, as answers come."""
    start = "[\n"
    for answer in answers:
        if _is_space(answer):
            continue
        yield start + json.dumps(answer.to_record(alphabet), ensure_ascii=False)
        start = ",\n"
    yield "[]\n" if start == "[\n" else "\n]\n"
