"""`qkv embed`: sentence embeddings."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.parameters import Device
from qkv.cli.shared.stdin import read_lines, warn
from qkv.cli.shared.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

BATCH_SIZE = 1024
"""Texts embedded at a time; within, texts of similar length share a batch."""


def embed(
    run: Annotated[
        Path,
        typer.Argument(help="Run folder of task masked, or a Hugging Face BERT folder.", autocompletion=complete_run),
    ],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts (default: lines of stdin).")] = None,
    similarities: Annotated[
        bool, typer.Option("--similarities", help="Print the cosine of every two texts instead of vectors.")
    ] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize/--raw", help="Scale vectors to length 1, so that dot products are cosines.")
    ] = True,
    truncate: Annotated[
        bool, typer.Option("--truncate", "--cut", help="Truncate texts that are too long (default: raise an error).")
    ] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Embed texts as the mean of their token vectors: `qkv embed runs/mine "one text" "another"`.

    Prints a line per text: the text, a tab, and the elements of its vector.
    """
    from qkv.runs import load_masked_lm

    if similarities and not normalize:
        raise ValueError("--similarities are cosines, which --raw does not change; leave out --raw")
    target = choose_device(device)
    model = load_masked_lm(run)
    model.model.to(target)
    given = texts or list(read_lines(warn))
    given = [text for text in given if text.strip()]
    if not given:
        raise ValueError("there is no text to embed; pass texts as arguments or lines of stdin")
    chunks = [given[start : start + BATCH_SIZE] for start in range(0, len(given), BATCH_SIZE)]
    vectors = [model.embed(chunk, normalize=normalize, truncate=truncate).cpu() for chunk in chunks]
    if similarities:
        _print_similarities(given, vectors, json)
    elif json:
        rows = (row.tolist() for part in vectors for row in part)
        print_json([{"input": text, "vector": row} for text, row in zip(given, rows, strict=True)])
    else:
        _print(given, vectors)


def _print(texts: list[str], vectors: list["Tensor"]) -> None:
    rows = (row for part in vectors for row in part.tolist())
    for text, row in zip(texts, rows, strict=True):
        sys.stdout.write(f"{visible(text)}\t{' '.join(f'{value:.6f}' for value in row)}\n")


def _print_similarities(texts: list[str], vectors: list["Tensor"], as_json: bool) -> None:
    import torch
    from rich.markup import escape
    from rich.table import Table

    matrix = torch.cat(vectors)
    cosines = (matrix @ matrix.T).tolist()
    if as_json:
        print_json({"inputs": texts, "similarities": cosines})
        return
    table = Table("", *(str(number) for number in range(1, len(texts) + 1)))
    for number, (text, row) in enumerate(zip(texts, cosines, strict=True), 1):
        table.add_row(f"{number}  {escape(text)}", *(f"{cosine:.3f}" for cosine in row))
    console().print(table)
