"""The command line: one file per command. Commands import torch inside their functions, so that `--help` is instant.

Exit codes: 0 success, 1 a bug in qkv, 2 wrong use, 3 a failed check.
"""

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from qkv.cli.shared.errors import describe_error
from qkv.cli.shared.help import HelpCommand, HelpGroup
from qkv.cli.shared.warnings import printed_warnings

COMMANDS = {
    "train": "modeling.train:train",
    "eval": "modeling.eval:evaluate",
    "runs": "modeling.runs:runs",
    "show": "inspection.show:show",
    "predict": "modeling.predict:predict",
    "pronounce": "modeling.pronounce:pronounce",
    "compare": "modeling.compare:compare",
    "embed": "modeling.embed:embed",
    "words": "modeling.words:words",
    "tokenize": "modeling.tokenize:tokenize",
    "joint": "modeling.joint:joint",
    "cost": "inspection.cost:cost",
    "check": "inspection.check:check",
    "bench": "inspection.bench:bench",
    "problems": "inspection.problems:problems",
    "look": "inspection.look:look",
    "serve": "inspection.serve:serve",
    "list": "inspection.list:list_registered",
}
"""Command -> file below qkv/cli and function; `qkv --help` prints them in this order."""

app = typer.Typer(
    name="qkv",
    cls=HelpGroup,
    help="Attention, from exact softmax to linear time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
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


for _name, _target in COMMANDS.items():
    _module, _function = _target.split(":")
    _command = getattr(import_module(f"qkv.cli.{_module}"), _function)
    if isinstance(_command, typer.Typer):
        for _info in _command.registered_commands:
            _info.cls = HelpCommand
        app.add_typer(_command, name=_name, cls=HelpGroup)
    else:
        app.command(_name, cls=HelpCommand)(_command)


def main() -> None:
    """Run a command; an error is one sentence on stderr. With QKV_TRACEBACK=1 it is a traceback."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler, which measures memory, prints
    if os.environ.get("QKV_TRACEBACK"):
        app()
        return
    try:
        with printed_warnings():
            app()
    except Exception as error:  # noqa: BLE001 - every error becomes a sentence
        sentence, code = describe_error(error)
        sys.stderr.write(f"qkv: {sentence}\n")
        sys.exit(code)
