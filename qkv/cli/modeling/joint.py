"""`qkv joint`: fit a joint n-gram model that rescores the answers of a pronouncer."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.completion import complete_run
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.parameters import Device, With


def joint(
    run: Annotated[Path, typer.Argument(help="Run folder of task pronounce.", autocompletion=complete_run)],
    order: Annotated[int | None, typer.Option(help="Units in the longest n-gram (default: 6).")] = None,
    beams: Annotated[int, typer.Option(help="Beam width for the held-out words on which the weight is fitted.")] = 10,
    with_: With = None,
    out: Annotated[Path | None, typer.Option(help="Output file (default: joint.bin in the run folder).")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Fit n-grams of letters and phones to the training words of a run, to rescore its answers. Takes seconds.

    Their weight is fitted on the run's held-out words. With joint.bin in the run folder, `qkv eval RUN` and
    `qkv pronounce --model RUN` use beam search and rescore; `qkv predict RUN` does not. Fit again after more training.

    For an ensemble: `qkv joint RUN --with OTHER --out FILE`, then `qkv eval RUN --with OTHER --joint FILE`.
    """
    from dataclasses import asdict, replace

    from qkv import runs, tasks
    from qkv.pronunciation import NeuralG2P
    from qkv.pronunciation.bundled import JOINT_FILE
    from qkv.pronunciation.joint_fit import DEFAULT_ORDER, fit_joint_ngram
    from qkv.pronunciation.rescore import fit_joint_weights
    from qkv.train import Run

    _check_options(order, beams, with_, out)
    config = runs.read_config(Run(run))
    if config.task != "pronounce":
        raise ValueError(f"{run} is a run of task {config.task!r}; a joint model needs one of task 'pronounce'")
    network = NeuralG2P.open(run, *(with_ or []), joint=False)
    network.model.to(choose_device(device))
    splits = tasks.tasks[config.task].load(config.data).data.splits  # type: ignore[attr-defined]
    pairs = [("".join(pair.source), target) for pair in splits["train"] for target in pair.targets]
    with console(stderr=True).status("n-grams"):
        model = fit_joint_ngram(pairs, order or DEFAULT_ORDER)
        chosen = fit_joint_weights(network, model, splits["valid"], beams)
    path = out or run / JOINT_FILE
    replace(model, weight=chosen.weight, sharpness=chosen.sharpness).write(path)
    size = path.stat().st_size
    if json:
        print_json({"file": str(path), "bytes": size, "n_grams": len(model.last) - 1, "beams": beams, **asdict(chosen)})
        return
    console().print(
        f"{path}: {len(model.last) - 1:,} n-grams, {size / 2**20:.1f} MiB, weight {chosen.weight:.2f}\n"
        f"{chosen.words:,} held-out words, beam {beams}: {chosen.wrong_alone:.2%} wrong alone, {chosen.wrong_with:.2%} "
        "with it (cross-validated on two halves)",
        soft_wrap=True,
        markup=False,
    )


def _check_options(order: int | None, beams: int, others: list[Path] | None, out: Path | None) -> None:
    if beams < 2:
        raise ValueError(f"--beams must be at least 2, since a single answer cannot be reordered, got {beams}")
    if order is not None and order < 1:
        raise ValueError(f"--order must be at least 1, got {order}")
    if others and out is None:
        raise ValueError("--with needs --out FILE: the joint model in a run folder is for that run alone")
