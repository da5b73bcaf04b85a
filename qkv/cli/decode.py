"""`qkv decode`: answers from a trained run."""

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import pronounce
from qkv.cli.device import choose_device
from qkv.cli.eval import With
from qkv.cli.fill import fill
from qkv.cli.lines import read_lines, warn
from qkv.cli.output import Json, print_json

if TYPE_CHECKING:
    from torch import nn

    from qkv.decode import Hypothesis
    from qkv.tasks import ClassJob, StringJob

TOGETHER = 1024
"""Inputs that are read before they are answered, so that those of like length go together."""


def decode(
    run: Annotated[Path, typer.Argument(help="A run folder, or pronounce: the pronouncer that comes with qkv.")],
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Texts; lines of stdin without.")] = None,
    search: Annotated[str | None, typer.Option(help="greedy, beam or sample; sample for texts, else beam.")] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam.")] = 4,
    best: Annotated[int, typer.Option(help="Answers an input, with their probabilities.")] = 1,
    temperature: Annotated[float, typer.Option(help="Of sampling: below 1 bolder, above 1 wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest that make up this share.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    with_: With = None,
    tokens: Annotated[int | None, typer.Option(help="texts: how many to write at most; 100 without.")] = None,
    device: Annotated[str | None, typer.Option(help="Of run folders: cpu or cuda; cuda if it is there.")] = None,
    dictionary: pronounce.Dictionary = None,
    model: pronounce.Model = None,
    model_only: pronounce.ModelOnly = False,
    alphabet: pronounce.Alphabet = None,
    stress: pronounce.Stress = True,
    format_: pronounce.LexiconFormat = None,
    json: Json = False,
) -> None:
    """Answer each input: `qkv decode runs/mine kubernetes`, `qkv decode runs/xor 0,1`, or a line of stdin each.

    `qkv decode runs/bert "the [MASK] sat" --best 5` fills in what is hidden.
    A language model goes on with a text: `qkv decode runs/text "The statement" --tokens 200 --top-k 40`.
    `qkv decode pronounce kubernetes` asks dictionaries first, then the model, and says which.
    """
    from qkv.registry import unknown

    if search is not None and search not in ("greedy", "beam", "sample"):
        raise unknown("search", search, ("greedy", "beam", "sample"))
    if beams < 1:
        raise ValueError(f"--beams must be at least 1, got {beams}")
    if best < 1:
        raise ValueError(f"--best must be at least 1, got {best}")
    if best > 1 and search not in (None, "beam"):
        raise ValueError(f"--best {best} needs --search beam: {search} gives one answer")
    wishes = pronounce.Wishes(dictionary, model, model_only, alphabet, stress, format_)
    if str(run) == pronounce.NAME:
        if with_:
            raise ValueError("--with is for run folders, and pronounce is the model that comes with qkv")
        if device is not None:
            raise ValueError("--device is for run folders; the model that comes with qkv is fast on any processor")
        if search == "sample":
            raise ValueError("search must be greedy or beam for the pronouncer, got 'sample'")
        pronounce.say(inputs, wishes, best=best, beams=1 if search == "greedy" else beams, as_json=json)
        return
    wishes.refuse(run)
    options: dict[str, Any] = {"beams": max(beams, best), "best": best}
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options |= {"seed": seed, "tokens": tokens, "device": choose_device(device)}
    records = _answer_all([run, *(with_ or [])], inputs, search, options, quiet=json)
    if json:
        print_json(records)


def _answer_all(
    runs: list[Path], inputs: list[str] | None, search: str | None, options: dict[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    """The answers of a run, or of several as one, printed as they come, or `quiet` and returned."""
    from qkv import tasks
    from qkv.cli.writing import continue_texts

    _, job, model = tasks.restore(*runs)
    model.to(options.pop("device"))
    if isinstance(job, tasks.TextJob):
        return continue_texts(job, model, inputs, search or "sample", options, quiet=quiet)
    if options["tokens"] is not None:
        raise ValueError(f"--tokens is for runs of task text, and {runs[0]} is none")
    if isinstance(job, tasks.ClassJob):
        texts = inputs or (line.rstrip("\n") for line in sys.stdin)
        return _classify(job, model, texts, options["best"], quiet=quiet)
    if isinstance(job, tasks.MaskedJob):
        reader = tasks.Reader(model, job.tokeniser)  # type: ignore[arg-type]
        return fill(reader, _chunks(inputs or read_lines(warn)), options["best"], quiet=quiet)
    if not isinstance(job, tasks.StringJob):
        raise ValueError(f"{runs[0]} is a run of task {job.kind!r}, which has no texts to answer")
    records: list[dict[str, Any]] = []
    for chunk in _chunks(inputs or (line.rstrip("\n") for line in sys.stdin)):
        for text, found in zip(chunk, _answer(job, model, chunk, search or "beam", options), strict=True):
            record = {"input": text, "answers": [_record(job, hypothesis) for hypothesis in found]}
            records += [record] if quiet else _print(record, options["best"])
    return records


def _classify(
    job: "ClassJob", model: "nn.Module", inputs: Iterable[str], best: int, *, quiet: bool
) -> list[dict[str, Any]]:
    """The likeliest classes of each example, which is a text of its numbers."""
    import torch

    records: list[dict[str, Any]] = []
    for chunk in _chunks(inputs):
        found = job.probabilities(model, torch.stack([job.parse(text) for text in chunk]))
        for text, probabilities in zip(chunk, found, strict=True):
            likeliest = probabilities.argsort(descending=True, stable=True)[:best].tolist()
            answers = [{"text": job.classes[c], "probability": float(probabilities[c])} for c in likeliest]
            record = {"input": text, "answers": answers}
            records += [record] if quiet else _print(record, best)
    return records


def _chunks(inputs: Iterable[str]) -> Iterator[list[str]]:
    stream = (text for text in inputs if text.strip())
    while chunk := list(islice(stream, TOGETHER)):
        yield chunk


def _answer(
    job: "StringJob", model: "nn.Module", texts: list[str], search: str, options: dict[str, Any]
) -> list[list["Hypothesis"]]:
    from qkv.data import pad
    from qkv.decode import sample
    from qkv.tasks import Search, answer
    from qkv.tasks.strings import limits_of

    sources = [list(text.strip()) if job.settings.source == "characters" else text.split() for text in texts]
    known = set(job.strings.sources.tokens)
    sources = [[token if token in known else _other_case(token, known) for token in source] for source in sources]
    for text, source in zip(texts, sources, strict=True):
        strange = sorted({token for token in source if token not in known})
        if strange:
            sys.stderr.write(f"qkv: {text!r} has {', '.join(map(repr, strange))}, which the model has never seen\n")
        if len(source) > model.config.max_length:  # type: ignore[union-attr, operator]
            raise ValueError(f"{text[:30]!r}... has {len(source)} tokens; the model takes {model.config.max_length}")  # type: ignore[union-attr]
    if search == "sample":
        rows, mask = pad([job.strings.sources.encode(source) for source in sources])
        draw = {name: options[name] for name in ("seed", "temperature", "top_k", "top_p")}
        where = next(model.parameters()).device
        return [[one] for one in sample(model, rows.to(where), mask.to(where), limits_of(model), **draw)]  # type: ignore[arg-type]
    wide = Search() if search == "greedy" else Search(beams=options["beams"], best=options["best"])
    return answer(model, job.strings, sources, wide)


def _other_case(token: str, known: set[str]) -> str:
    """A letter that was only ever seen in the other case is taken as that."""
    return next((other for other in (token.lower(), token.upper()) if other in known), token)


def _record(job: "StringJob", hypothesis: "Hypothesis") -> dict[str, Any]:
    from qkv.tasks.report import text

    return {
        "text": text(job, hypothesis.tokens),
        "probability": math.exp(hypothesis.log_probability),
        "score": hypothesis.score,
        "finished": hypothesis.finished,
    }


def _print(record: dict[str, Any], best: int) -> list[dict[str, Any]]:
    for answer in record["answers"]:
        probability = f"\t{answer['probability']:.4f}" if best > 1 else ""
        sys.stdout.write(f"{record['input']}\t{answer['text']}{probability}\n")
    return []
