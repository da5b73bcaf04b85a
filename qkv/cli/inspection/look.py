"""`qkv look`: save one page about one input."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.parameters import Device
from qkv.cli.shared.visible import visible


def look(
    run: Annotated[
        Path, typer.Argument(help="Run folder, or pronounce: the bundled model.", autocompletion=complete_run)
    ],
    text: Annotated[str, typer.Argument(metavar="INPUT", help="Text that the model reads.")],
    out: Annotated[Path, typer.Option(help="File to write the page to.")] = Path("look.html"),
    answer: Annotated[str, typer.Option(help="Target to show instead of the model's own answer.")] = "",
    device: Device = None,
    json: Json = False,
) -> None:
    """Write a page that shows the model's attention: one file, which needs no server and no network."""
    from qkv.web import SavedPage
    from qkv.web.backend import RunBackend

    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    SavedPage(
        RunBackend(run, choose_device(device)), {"text": text, "answer": answer}, title=f"{run.name}: {text}"
    ).save(out)
    if json:
        print_json({"run": str(run), "input": text, "page": str(out), "bytes": out.stat().st_size})
    else:
        typer.echo(f"{visible(str(out))} ({out.stat().st_size / 2**20:.1f} MiB): open it in a browser")
