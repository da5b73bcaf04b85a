"""`qkv joint`: a second opinion for a pronouncer."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.modeling.eval import With
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device


def joint(
    run: Annotated[Path, typer.Argument(help="A run folder of task pronounce.")],
    order: Annotated[int | None, typer.Option(help="Units in the longest n-gram; 6 without.")] = None,
    beams: Annotated[int, typer.Option(help="Answers to each held-out word that the weight is chosen by.")] = 10,
    with_: With = None,
    out: Annotated[Path | None, typer.Option(help="Where to write it; into the run folder without.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda if it is there.")] = None,
    json: Json = False,
) -> None:
    """Learn n-grams of letters and phones from the words of a run, to check its answers with.

    Seconds of work. The weight that they have beside the network is chosen on the run's held-out words, and they lie in
    the run folder: from then on `qkv eval RUN` and `qkv decode pronounce --model RUN` search with a beam and use them
    (`qkv decode RUN`, which knows nothing of words, does not). After more training make them again.

    For several runs as one: `qkv joint RUN --with OTHER --out FILE`, then `qkv eval RUN --with OTHER --joint FILE`.
    """
    from dataclasses import asdict, replace

    from qkv import tasks
    from qkv.pronunciation import Network
    from qkv.pronunciation.bundled import JOINT
    from qkv.pronunciation.joint_fit import ORDER, fit
    from qkv.pronunciation.rescore import choose
    from qkv.train import Run

    if beams < 2:
        raise ValueError(f"--beams must be at least 2: one answer cannot be checked against another, got {beams}")
    if order is not None and order < 1:
        raise ValueError(f"--order must be at least 1, got {order}")
    config = tasks.read_config(Run(run))
    if config.task != "pronounce":
        raise ValueError(f"{run} is a run of task {config.task!r}; only those of task 'pronounce' are checked so")
    if with_ and out is None:
        raise ValueError("for several runs as one say --out FILE: in a run folder is the joint model of that run alone")
    network = Network.open(run, *(with_ or []), joint=False)
    network.model.to(choose_device(device))
    parts = tasks.tasks[config.task].load(config.data).strings.parts  # type: ignore[attr-defined]
    pairs = [("".join(pair.source), target) for pair in parts["train"] for target in pair.targets]
    with console(stderr=True).status("n-grams"):
        model = fit(pairs, order or ORDER)
        chosen = choose(network, model, parts["valid"], beams)
    path = out or run / JOINT
    replace(model, weight=chosen.weight, sharpness=chosen.sharpness).write(path)
    size = path.stat().st_size
    if json:
        print_json({"file": str(path), "bytes": size, "n_grams": len(model.last) - 1, "beams": beams, **asdict(chosen)})
        return
    console().print(
        f"{path}: {len(model.last) - 1:,} n-grams, {size / 2**20:.1f} MiB, weight {chosen.weight:.2f}\n"
        f"{chosen.words:,} held-out words, beam {beams}: {chosen.wrong_alone:.2%} wrong alone, {chosen.wrong_with:.2%} "
        "with it (each half with the weight that suits the other)",
        soft_wrap=True,
        markup=False,
    )
