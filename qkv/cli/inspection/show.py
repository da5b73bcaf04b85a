"""`qkv show`: every setting of a preset, and its size."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.completion import complete_task_or_preset
from qkv.cli.shared.console import Json, print_json
from qkv.cli.shared.options import parse_changes
from qkv.cli.shared.parameters import Set
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.settings import print_settings

if TYPE_CHECKING:
    from qkv.runs import Config


def show(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="TASK[:PRESET]",
            help="Task, or a preset of it: pairs:large.",
            autocompletion=complete_task_or_preset,
        ),
    ],
    set_: Set = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Print every setting of a preset with its value, type, default and meaning: `qkv show pairs:large`.

    Change any of them with `qkv train TASK --preset PRESET --set NAME=VALUE`.
    """
    from qkv import runs

    load_plugins(plugin)
    config = _configure(spec, set_)
    settings, parameters = runs.list_settings(config), runs.count_parameters(config)
    if json:
        record = {"task": config.task, "family": config.family, "parameters": parameters}
        print_json({**record, "settings": [asdict(setting) for setting in settings]})
        return
    from qkv.tasks import tasks

    print_settings(settings)
    count = "known when the data is read" if parameters is None else f"{parameters:,}"
    typer.echo(f"parameters: {count}")
    typer.echo(f"presets of {config.task}: {', '.join(tasks[config.task].presets)}")


def _configure(spec: str, settings: list[str] | None) -> "Config":
    from qkv import runs

    task, _, preset = spec.partition(":")
    changes = parse_changes(settings)
    return runs.configure(task, runs.preset(task, preset or None, changes.get("data")), changes)
