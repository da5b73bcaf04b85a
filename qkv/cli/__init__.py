"""The command line: one file per command, importing inside the function, so that help is instant.

Exit codes: 0 done, 2 wrong use, 3 a check that failed.
"""

import os
import sys
from typing import Annotated

import typer

from qkv.cli.inspection.bench import bench
from qkv.cli.inspection.check import check
from qkv.cli.inspection.cost import cost
from qkv.cli.inspection.list import list_registered
from qkv.cli.inspection.look import look
from qkv.cli.inspection.problems import problems
from qkv.cli.inspection.serve import serve
from qkv.cli.modeling.compare import compare
from qkv.cli.modeling.embed import embed
from qkv.cli.modeling.eval import evaluate
from qkv.cli.modeling.joint import joint
from qkv.cli.modeling.predict import decode
from qkv.cli.modeling.tokenize import tokenize
from qkv.cli.modeling.train import train
from qkv.cli.modeling.words import words
from qkv.storage import QkvError

app = typer.Typer(
    name="qkv",
    help="Attention, from exact softmax to linear time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from qkv import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("list")(list_registered)
app.command("check")(check)
app.command("problems")(problems)
app.command("train")(train)
app.command("eval")(evaluate)
app.command("decode")(decode)
app.command("joint")(joint)
app.command("embed")(embed)
app.command("compare")(compare)
app.command("cost")(cost)
app.command("look")(look)
app.command("serve")(serve)
app.add_typer(words, name="words")
app.add_typer(bench, name="bench")
app.add_typer(tokenize, name="tokenize")


def main() -> None:
    """Run a command; what a user got wrong is one sentence on stderr, not a traceback."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler, which measures memory, prints otherwise
    try:
        app()
    except (QkvError, ValueError, TypeError, OverflowError, OSError) as error:
        sys.stderr.write(f"qkv: {error}\n")
        sys.exit(2)
