"""A text as a model reads it, and an answer as it writes it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qkv.data import Recall, Vocabulary, pad
from qkv.decode import greedy
from qkv.inference.source_text import in_known_case, longest_source, split_source
from qkv.tasks import Task, MaskedTask, RecallTask, Seq2SeqTask, TextTask
from qkv.tasks.seq2seq import limits_of

READABLE = (RecallTask, Seq2SeqTask, TextTask, MaskedTask)
"""Tasks whose inputs are tokens."""


@dataclass(frozen=True)
class Sequence:
    """Tokens as people see them, with their ids."""

    tokens: list[str]
    ids: list[int]
    notes: list[str]
    """What had to be changed or was never seen."""


def example(job: Task) -> str:
    """A text to begin with; what the page shows of it is computed when it is asked for."""
    if isinstance(job, RecallTask):
        options = job.settings
        source = Recall(options.vocabulary, options.length, options.pairs)
        return " ".join(map(str, source.examples(options.seed, "test", 0, 1)[0][0].tolist()))
    if isinstance(job, MaskedTask):
        return f"the value of the {job.tokenizer.token(job.tokenizer.mask or 0)} is returned"
    if isinstance(job, TextTask):
        return "The statement"
    assert isinstance(job, Seq2SeqTask)
    known = job.strings.sources.tokens
    if job.kind == "pronounce":
        return "attention"
    return "".join(known[:6]) if job.settings.source == "characters" else " ".join(known[:6])


def read_source(job: Task, model: nn.Module, text: str) -> Sequence:
    """The text cut into tokens of this model; an empty or too long one is refused in words."""
    if isinstance(job, TextTask):
        read = _pieces(text, job)
    elif isinstance(job, MaskedTask):
        read = _framed(text, job)
    else:
        read = _ids(text, job) if isinstance(job, RecallTask) else _characters_or_words(text, job)
    if not read.ids:
        raise ValueError("the text is empty; write something for the model to read")
    longest = longest_source(model)
    if longest is not None and len(read.ids) > longest:
        raise ValueError(f"the text has {len(read.ids):,} tokens; this model takes at most {longest:,}")
    return read


def read_target(job: Seq2SeqTask, model: Any, text: str) -> Sequence:
    """An answer that somebody wants to look at, in the model's tokens."""
    known = set(job.strings.targets.tokens)
    tokens = split_source(text, job.settings.target)
    read = _known(tokens, known, job.strings.targets)
    if len(read.ids) >= model.config.max_length:
        raise ValueError(f"the answer has {len(read.ids):,} tokens; this model writes {model.config.max_length - 1:,}")
    return read


def answer_greedily(job: Seq2SeqTask, model: Any, source: Sequence) -> Sequence:
    """What the model writes by itself."""
    with torch.inference_mode():
        rows, mask = pad([source.ids])
        (found,) = greedy(model, rows, mask, limits_of(model))
    return Sequence(names(job.strings.targets, found.tokens), list(found.tokens), [])


def names(vocabulary: Vocabulary, ids: tuple[int, ...] | list[int]) -> list[str]:
    """Each id as people see it, the special ones too."""
    return [vocabulary.SPECIAL[number] if number < 4 else vocabulary.tokens[number - 4] for number in ids]


def _framed(text: str, job: MaskedTask) -> Sequence:
    """[CLS] text [SEP]; a [MASK] in the text is one."""
    if not text.strip():
        return Sequence([], [], [])
    own = job.tokenizer
    ids = [own.classify or 0, *own.encode(text, special=True), own.separator or 0]
    notes = ["some of the text is unknown to the tokenizer"] if own.unknown in ids else []
    return Sequence([own.token(number) for number in ids], ids, notes)


def _pieces(text: str, job: TextTask) -> Sequence:
    """After the token that every text starts with."""
    one = job.tokenizer
    ids = [one.start, *one.encode(text)] if text else []
    return Sequence([one.token(number) for number in ids], ids, [])


def _ids(text: str, job: RecallTask) -> Sequence:
    tokens = text.split()
    highest = job.settings.vocabulary - 1
    for token in tokens:
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) <= highest):
            shown = token if len(token) <= 20 else f"{token[:20]}..."
            raise ValueError(f"this model reads numbers from 0 to {highest} with spaces between them, got {shown!r}")
    return Sequence(tokens, [int(token) for token in tokens], [])


def _characters_or_words(text: str, job: Task) -> Sequence:
    assert isinstance(job, Seq2SeqTask)
    known = set(job.strings.sources.tokens)
    tokens = split_source(text, job.settings.source)
    return _known(in_known_case(tokens, known), known, job.strings.sources)


def _known(tokens: list[str], known: set[str], vocabulary: Vocabulary) -> Sequence:
    strange = sorted({token for token in tokens if token not in known})
    more = f" and {len(strange) - 8} more" if len(strange) > 8 else ""
    named = " ".join("\N{OPEN BOX} (a space)" if token == " " else token for token in strange[:8])
    notes = [f"never seen in training, read as unknown: {named}{more}"] if strange else []
    return Sequence(tokens, vocabulary.encode(tokens), notes)
