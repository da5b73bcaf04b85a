"""`qkv decode`: answers from a trained run."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qkv.cli.modeling import pronounce
from qkv.cli.modeling.eval import With
from qkv.cli.modeling.fill_mask import fill
from qkv.cli.shared.console import Json, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.stdin import read_lines, warn
from qkv.cli.shared.warnings import Complaints

if TYPE_CHECKING:
    from torch import nn

    from qkv.decode import Hypothesis
    from qkv.tasks import ClassificationTask, Seq2SeqTask

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
    from qkv.registry import unknown_name_error

    if search is not None and search not in ("greedy", "beam", "sample"):
        raise unknown_name_error("search", search, ("greedy", "beam", "sample"))
    if beams < 1:
        raise ValueError(f"--beams must be at least 1, got {beams}")
    if best < 1:
        raise ValueError(f"--best must be at least 1, got {best}")
    if search is not None:
        _require_beam(search, best)
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


def _require_beam(search: str, best: int) -> None:
    if best > 1 and search != "beam":
        raise ValueError(f"--best {best} needs --search beam: {search} gives one answer")


def _answer_all(
    runs: list[Path], inputs: list[str] | None, search: str | None, options: dict[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    """The answers of a run, or of several as one, printed as they come, or `quiet` and returned."""
    from qkv import tasks
    from qkv.cli.modeling.generate import continue_texts
    from qkv.inference.source_text import split_source

    _, job, model = tasks.restore(*runs)
    model.to(options.pop("device"))
    if isinstance(job, tasks.TextTask):
        search = search or "sample"
        _require_beam(search, options["best"])
        return continue_texts(job, model, inputs, search, options, quiet=quiet)
    if options["tokens"] is not None:
        raise ValueError(f"--tokens is for runs of task text, and {runs[0]} is none")
    if not isinstance(job, tasks.ClassificationTask | tasks.MaskedTask | tasks.Seq2SeqTask):
        raise ValueError(f"{runs[0]} is a run of task {job.kind!r}, which has no texts to answer")
    chunks = _chunks(inputs or read_lines(warn))
    if isinstance(job, tasks.MaskedTask):
        reader = tasks.Reader(model, job.tokenizer)  # type: ignore[arg-type]
        return fill(reader, chunks, options["best"], quiet=quiet)
    if isinstance(job, tasks.ClassificationTask):
        way = _Way(job.parse, lambda texts, _: _classify(job, model, texts, options["best"]))
    else:
        way = _Way(
            lambda text: _require_short(split_source(text, job.settings.source), text, model),
            lambda texts, numbers: _answer(job, model, texts, search or "beam", {**options, "numbers": numbers}),
        )
    return _answer_chunks(way, chunks, options["best"], quiet=quiet)


class _Way(NamedTuple):
    """How the texts of a run are answered."""

    check: Callable[[str], object]
    """Raises a ValueError for a text that has no answer."""
    answer: Callable[[list[str], list[int]], list[list[dict[str, Any]] | str]]
    """The answers to texts, given with their numbers among all, that have some; or why there is none after all."""

    def obstacle(self, text: str) -> str | None:
        """What is in the way of answering this text, as a sentence."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            return f"{text[:40]!r} was not UTF-8 where it came from"
        try:
            self.check(text)
        except ValueError as error:
            return str(error)
        return None


def _answer_chunks(way: _Way, chunks: Iterable[list[str]], best: int, *, quiet: bool) -> list[dict[str, Any]]:
    """The answers to each text, printed as lines, or `quiet` and returned.

    A text that has none stops no other: it is told on stderr, or its record has an `error`.
    """
    records: list[dict[str, Any]] = []
    complaints = Complaints()
    begun = 0
    for chunk in chunks:
        obstacles = [way.obstacle(text) for text in chunk]
        places = [place for place, obstacle in enumerate(obstacles) if obstacle is None]
        whole = [chunk[place] for place in places]
        found = iter(way.answer(whole, [begun + place for place in places]) if whole else [])
        begun += len(chunk)
        for text, obstacle in zip(chunk, obstacles, strict=True):
            answers = next(found) if obstacle is None else obstacle
            if quiet:
                records.append(_to_record(text, answers))
            elif isinstance(answers, str):
                complaints.tell(answers)
            else:
                _print(text, answers, best)
    complaints.finish("inputs")
    return records


def _to_record(text: str, answers: list[dict[str, Any]] | str) -> dict[str, Any]:
    failed = isinstance(answers, str)
    return {"input": text, "answers": [] if failed else answers, "error": answers if failed else None}


def _classify(job: "ClassificationTask", model: "nn.Module", texts: list[str], best: int) -> list[list[dict[str, Any]] | str]:
    """The likeliest classes of each example, which is a text of its numbers; or that they are too large for any."""
    import torch

    found = job.probabilities(model, torch.stack([job.parse(text) for text in texts]))
    likeliest = found.argsort(descending=True, stable=True)[:, :best].tolist()
    return [
        [{"text": job.classes[c], "probability": float(probabilities[c])} for c in classes]
        if probabilities.isfinite().all()
        else f"{text[:40]!r} has numbers so large that the model has no finite answer"
        for text, probabilities, classes in zip(texts, found, likeliest, strict=True)
    ]


def _chunks(inputs: Iterable[str]) -> Iterator[list[str]]:
    stream = (text for text in inputs if text.strip())
    while chunk := list(islice(stream, TOGETHER)):
        yield chunk


def _answer(
    job: "Seq2SeqTask", model: "nn.Module", texts: list[str], search: str, options: dict[str, Any]
) -> list[list[dict[str, Any]] | str]:
    """The likeliest strings, or one that is drawn, for each text; what the model has never seen is told."""
    found = _search(job, model, _known_sources(job, texts), search, options)
    return [[_record(job, hypothesis) for hypothesis in hypotheses] for hypotheses in found]


def _require_short(source: list[str], text: str, model: "nn.Module") -> None:
    from qkv.inference.source_text import longest_source

    most = longest_source(model)
    if most is not None and len(source) > most:
        raise ValueError(f"{text[:30]!r}... has {len(source)} tokens; the model takes {most}")


def _known_sources(job: "Seq2SeqTask", texts: list[str]) -> list[list[str]]:
    """The tokens of each text, in the case that the model knows; those that it does not know are told."""
    from qkv.inference.source_text import in_known_case, split_source

    known = set(job.strings.sources.tokens)
    sources = [in_known_case(split_source(text, job.settings.source), known) for text in texts]
    for text, source in zip(texts, sources, strict=True):
        strange = sorted({token for token in source if token not in known})
        if strange:
            sys.stderr.write(f"qkv: {text!r} has {', '.join(map(repr, strange))}, which the model has never seen\n")
    return sources


def _search(
    job: "Seq2SeqTask", model: "nn.Module", sources: list[list[str]], search: str, options: dict[str, Any]
) -> list[list["Hypothesis"]]:
    from qkv.data import Vocabulary, pad
    from qkv.decode import drawing
    from qkv.decode.single_path import follow
    from qkv.inference import Search, answer
    from qkv.tasks.seq2seq import limits_of

    if search == "sample":
        rows, mask = pad([job.strings.sources.encode(source) for source in sources])
        draw = {name: options[name] for name in ("seed", "temperature", "top_k", "top_p", "numbers")}
        where = next(model.parameters()).device
        limits = limits_of(model)
        # nothing that was ever answered, but chance may take it
        limits = replace(limits, forbidden=(*limits.forbidden, Vocabulary.UNKNOWN))
        return [[one] for one in follow(model, rows.to(where), mask.to(where), limits, drawing(**draw))]  # type: ignore[arg-type]
    wide = Search() if search == "greedy" else Search(beams=options["beams"], best=options["best"])
    return answer(model, job.strings, sources, wide)


def _record(job: "Seq2SeqTask", hypothesis: "Hypothesis") -> dict[str, Any]:
    from qkv.tasks.report import text

    return {
        "text": text(job, hypothesis.tokens),
        "probability": math.exp(hypothesis.log_probability),
        "score": hypothesis.score,
        "finished": hypothesis.finished,
    }


def _print(text: str, answers: list[dict[str, Any]], best: int) -> None:
    for answer in answers:
        probability = f"\t{answer['probability']:.4f}" if best > 1 else ""
        sys.stdout.write(f"{text}\t{answer['text']}{probability}\n")
