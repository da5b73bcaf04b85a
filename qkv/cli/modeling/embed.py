"""`qkv embed`: sentences as vectors."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.stdin import read_lines, warn

if TYPE_CHECKING:
    from torch import Tensor

TOGETHER = 1024
"""Texts that are read before they are embedded, so that those of like length go together."""


def embed(
    run: Annotated[Path, typer.Argument(help="A run folder of task masked, or of a Hugging Face BERT.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Lines of stdin without.")] = None,
    similarities: Annotated[
        bool, typer.Option("--similarities", help="Instead of vectors the cosine of every two texts.")
    ] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize/--raw", help="Vectors of length 1, whose dot products are cosines.")
    ] = True,
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut texts that are too long; without, they are an error.")
    ] = False,
    json: Json = False,
) -> None:
    """Turn texts into vectors, the mean of those of their tokens: `qkv embed runs/mine "one text" "another"`.

    Without --json a line each: the text, a tab, and its numbers.
    """
    from qkv.inference import Reader

    if similarities and not normalize:
        raise ValueError("--similarities are cosines of vectors of any length; leave out --raw")
    reader = Reader.load(run)
    given = texts or list(read_lines(warn))
    given = [text for text in given if text.strip()]
    if not given:
        raise ValueError("there is no text to embed; give some, or a line of stdin each")
    chunks = [given[start : start + TOGETHER] for start in range(0, len(given), TOGETHER)]
    vectors = [reader.embed(chunk, normalize=normalize, cut=cut) for chunk in chunks]
    if similarities:
        _compare(given, vectors, json)
    elif json:
        rows = (row.tolist() for part in vectors for row in part)
        print_json([{"input": text, "vector": row} for text, row in zip(given, rows, strict=True)])
    else:
        _print(given, vectors)


def _print(texts: list[str], vectors: list["Tensor"]) -> None:
    rows = (row for part in vectors for row in part.tolist())
    for text, row in zip(texts, rows, strict=True):
        sys.stdout.write(f"{text}\t{' '.join(f'{number:.6f}' for number in row)}\n")


def _compare(texts: list[str], vectors: list["Tensor"], as_json: bool) -> None:
    import torch
    from rich.markup import escape
    from rich.table import Table

    whole = torch.cat(vectors)
    cosines = (whole @ whole.T).tolist()
    if as_json:
        print_json({"inputs": texts, "similarities": cosines})
        return
    table = Table("", *(str(number) for number in range(1, len(texts) + 1)))
    for number, (text, row) in enumerate(zip(texts, cosines, strict=True), 1):
        table.add_row(f"{number}  {escape(text)}", *(f"{cosine:.3f}" for cosine in row))
    console().print(table)
