"""`qkv serve`: the workbench in a browser on this machine."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def serve(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run folder, or pronounce: the bundled model. Without: the newest in runs/, else that."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page as well.")] = False,
) -> None:
    """Show a model at work in a browser: a page of this machine alone, with nothing from a network."""
    try:
        from qkv.web.server import Server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ValueError('the page needs the extra "web": pip install "qkv[web]"') from error
    from qkv.web.backend import RunBench, newest_run

    shown = newest_run(Path("runs")) if run is None else run
    server = Server(RunBench(shown), port)
    typer.echo(f"{shown}: open {server.address}\nCtrl-C ends it.")
    if browser:
        import webbrowser

        webbrowser.open(server.address)
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run()
