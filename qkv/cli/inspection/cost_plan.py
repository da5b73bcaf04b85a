"""`qkv cost SPEC --mesh ... --gpu ...`: what a training step needs on a mesh of GPUs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import print_json
from qkv.cli.shared.options import parse_changes

if TYPE_CHECKING:
    from qkv.train import Settings

MeshOption = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="AXIS=SIZE,...",
        help="Plan a training step on data=1,shard=8,sequence=8 GPUs: memory, bytes sent, shortest time.",
    ),
]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help="GPU of the plan: a100, h100, h200, b200 or l40s.")
]
Network = Annotated[
    float | None, typer.Option(metavar="GBIT", help="With --gpu: its network in Gbit/s (default: 400).")
]
Node = Annotated[int | None, typer.Option(help="With --gpu: GPUs per node (default: usual ones, mostly 8).")]
Batch = Annotated[int | None, typer.Option(help="With --gpu: examples per step over all GPUs (default: data * shard).")]
Precision = Annotated[
    str | None,
    typer.Option(help="With --gpu: bfloat16 (autocast: weights stay in float32) or float32 (default: train.dtype)."),
]


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan."""

    mesh: str | None
    gpu: str | None
    network: float | None
    node: int | None
    batch: int | None
    precision: str | None

    def __post_init__(self) -> None:
        others = {
            "--mesh": self.mesh,
            "--network": self.network,
            "--node": self.node,
            "--batch": self.batch,
            "--precision": self.precision,
        }
        given = [option for option, value in others.items() if value is not None]
        if given and self.gpu is None:
            raise ValueError(f"{', '.join(given)} plans a training step on GPUs, so it needs --gpu, such as --gpu h200")

    @property
    def wanted(self) -> bool:
        """Whether a plan is asked for."""
        return self.gpu is not None


@dataclass(frozen=True)
class PlannedModel:
    """The model of a plan, as the options describe it."""

    spec: str
    changes: list[str] | None
    inputs: list[str]
    sizes: dict[str, int]
    optimizer: str


def print_plan(model: PlannedModel, options: PlanOptions, *, json: bool) -> None:
    """Print the plan of a training step."""
    from qkv.cli.tables.plan import print_plan_tables
    from qkv.cost.input_spec import size_names
    from qkv.profile.blocks import REQUIRED_WIDTHS
    from qkv.profile.plan.gpus import find_gpu
    from qkv.profile.plan.plan import make_plan
    from qkv.profile.plan.request import make_step
    from qkv.profile.plan.to_json import plan_to_record
    from qkv.profile.spec import resolve_spec
    from qkv.train.parallel.mesh import Mesh, parse_mesh

    gpu = find_gpu(options.gpu or "")
    mesh = Mesh() if options.mesh is None else parse_mesh(options.mesh)
    if model.spec in REQUIRED_WIDTHS:
        raise ValueError(
            f"--gpu plans the training of a model, but {model.spec} is a block; use a preset with --set, such as "
            "text:small --set model.dim=512"
        )
    target = resolve_spec(model.spec, model.inputs, parse_changes(model.changes))
    named = size_names(target.inputs)
    tokens = min(128, target.max_tokens or 128)
    sizes = {"n": tokens, "m": model.sizes.get("n", tokens), **model.sizes}
    missing = [name for name in named if name not in sizes]
    if missing:
        raise ValueError(f"--input names the size {missing[0]!r}: give it a value, such as --size {missing[0]}=64")
    step = make_step(
        target,
        mesh,
        sizes={name: sizes[name] for name in named},
        batch=options.batch,
        precision=options.precision or _precision(target.settings),
        optimizer=model.optimizer,
    )
    plan = make_plan(step, gpu, node=options.node, network=options.network)
    if json:
        print_json(plan_to_record(plan))
    else:
        print_plan_tables(plan)


def _precision(settings: "Settings | None") -> str:
    """Return the precision of a training with these settings on a GPU."""
    return "bfloat16" if settings is None or settings.dtype == "auto" else settings.dtype
