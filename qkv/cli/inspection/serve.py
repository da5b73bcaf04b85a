"""`qkv serve`: the workbench in a browser on this machine."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.visible import visible


def serve(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Run folder, or pronounce: the bundled model (default: newest in runs/, else pronounce).",
            autocompletion=complete_run,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Also open the page in a browser.")] = False,
) -> None:
    """Inspect a model in a browser: a page served on this machine only, without a network."""
    try:
        from qkv.web.server import Server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ValueError('the page needs the extra "web": pip install "qkv[web]"') from error
    from qkv.web.backend import RunBackend, newest_run

    shown = newest_run(Path("runs")) if run is None else run
    server = Server(RunBackend(shown), port)
    typer.echo(f"{visible(str(shown))}: open {server.address}\nCtrl-C ends it.")
    if browser:
        import webbrowser

        webbrowser.open(server.address)
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run()
