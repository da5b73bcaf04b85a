"""`qkv serve`: the workbench in a browser on this machine, or an API for programs."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.visible import visible

if TYPE_CHECKING:
    from qkv.web.rest import ApiServer

TOKEN_VARIABLE = "QKV_API_TOKEN"
API_PANEL = "API for programs (--api)"


Host = Annotated[
    str | None,
    typer.Option(help="IP address to listen on (default: 127.0.0.1).", rich_help_panel=API_PANEL),
]
Token = Annotated[
    str | None,
    typer.Option(
        help=f"Token that requests must send (default: the environment variable {TOKEN_VARIABLE}; else no token on "
        "127.0.0.1, a random one elsewhere).",
        rich_help_panel=API_PANEL,
    ),
]
MaxStreams = Annotated[
    int | None,
    typer.Option(help="Most continuations that are generated at once (default: 64).", rich_help_panel=API_PANEL),
]
MaxWaiting = Annotated[
    int | None,
    typer.Option(
        help="Most continuations that wait; further ones get status 429 (default: 64).", rich_help_panel=API_PANEL
    ),
]
PrefixCacheSize = Annotated[
    float | None,
    typer.Option(
        "--prefix-cache",
        help="Most MiB for what prompts that begin alike share, so that it is computed once (default: 64; 0: none).",
        rich_help_panel=API_PANEL,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(help="Seconds until a request is given up (default: 120).", rich_help_panel=API_PANEL),
]


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
    api: Annotated[
        bool, typer.Option("--api", help="Serve HTTP for programs instead of the page.", rich_help_panel=API_PANEL)
    ] = False,
    host: Host = None,
    token: Token = None,
    max_streams: MaxStreams = None,
    max_waiting: MaxWaiting = None,
    prefix_cache: PrefixCacheSize = None,
    timeout: Timeout = None,
) -> None:
    """Inspect a model in a browser: a page served on this machine only, without a network.

    With --api: completions and embeddings in the OpenAI layout, and predictions of any task, for programs.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError('`qkv serve` needs the extra "web": pip install "qkv[web]"') from error
    from qkv.web.backend import newest_run

    settings = {
        "host": host,
        "token": token,
        "max_streams": max_streams,
        "max_waiting": max_waiting,
        "prefix_cache": prefix_cache,
        "timeout": timeout,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    shown = newest_run(Path("runs")) if run is None else run
    if api:
        _refuse({"browser": browser}, "--api has no page to open")
        _serve_api(shown, {"port": port, **given})
    else:
        _refuse(given, "it needs --api")
        _serve_page(shown, port, browser)


def _refuse(options: dict[str, Any], reason: str) -> None:
    """Raise ValueError if one of these options was given."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"--{name.replace('_', '-')} has no effect here: {reason}")


def _serve_page(run: Path, port: int, browser: bool) -> None:
    from qkv.web.backend import RunBackend
    from qkv.web.server import Server

    server = Server(RunBackend(run), port)
    typer.echo(f"{visible(str(run))}: open {server.address}\nCtrl-C ends it.")
    if browser:
        import webbrowser

        webbrowser.open(server.address)
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run()


def _serve_api(run: Path, given: dict[str, Any]) -> None:
    import os
    import signal
    import sys

    from qkv.web.connections import raise_file_limit
    from qkv.web.rest import ApiServer, ApiSettings, ServedRun
    from qkv.web.rest.server import most_connections

    variable = os.environ.get(TOKEN_VARIABLE)
    if variable:
        given.setdefault("token", variable)
    settings = ApiSettings(**given)
    raise_file_limit(most_connections(settings))
    server = ApiServer(ServedRun.load(run), settings)
    # before uvicorn has its own handler; and when it has ended, it raises the signal again
    signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    typer.echo(_describe(run, server))
    with suppress(KeyboardInterrupt):
        server.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # every request has its answer; a computation that nobody waits for must not hold up the exit


def _describe(run: Path, server: "ApiServer") -> str:
    """Return the address and an example of a request; a token of the user is not shown."""
    from shlex import quote

    served = server.api.served
    example = served.example_request()
    header = ""
    if server.token is not None:
        shown = server.token if server.has_own_token else f"${TOKEN_VARIABLE}"
        header = f' -H "authorization: Bearer {shown}"'
    lines = [
        f"{visible(str(run))}: listening on {server.address}, model {visible(served.name)!r}",
        f"curl {server.address}{example.path}{header} -H 'content-type: application/json' -d {quote(example.body)}",
    ]
    if header and not server.has_own_token:
        lines.append(f"{TOKEN_VARIABLE} is the token that the server was given.")
    return "\n".join([*lines, "Ctrl-C or SIGTERM ends it, after the requests in flight."])
