"""`qkv look`: one page about one input, to keep."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.console import Json, print_json


def look(
    run: Annotated[Path, typer.Argument(help="A run folder, or pronounce: the model that comes with qkv.")],
    text: Annotated[str, typer.Argument(metavar="INPUT", help="What the model reads.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("look.html"),
    answer: Annotated[str, typer.Option(help="Look at this answer instead of the model's own.")] = "",
    json: Json = False,
) -> None:
    """Write a page that shows where the model looked: one file, which needs no server and no network."""
    from qkv.web import View
    from qkv.web.backend import RunBench

    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    bench = RunBench(run)
    View(bench, {"text": text, "answer": answer}, title=f"{run.name}: {text}").save(out)
    if json:
        print_json({"run": str(run), "input": text, "page": str(out), "bytes": out.stat().st_size})
    else:
        typer.echo(f"{out} ({out.stat().st_size / 2**20:.1f} MiB): open it in a browser")
