"""`qkv bench attention`: time and memory of every kind beside softmax, on this machine now."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.plugin import Plugin, load_plugins

if TYPE_CHECKING:
    from qkv.attention import Attention

bench = typer.Typer(help="Speed and memory on this machine.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Speed and memory on this machine."""


@dataclass(frozen=True)
class Row:
    """One kind at one length."""

    kind: str
    tokens: int
    milliseconds: float
    ratio_to_softmax: float
    """How many times faster than softmax at the same length."""
    peak_bytes: int


@bench.command("attention")
def bench_attention(
    tokens: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "4096,8192,16384,32768",
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind, beside softmax. Repeatable.")] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Forward and backward.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Time each attention kind against softmax: causal, 1 sequence, 8 heads, value_dim 64, float32."""
    load_plugins(plugin)
    lengths = _lengths(tokens)
    device = choose_device(device)
    rows = run(lengths, kind, backward=backward, device=device)
    if json:
        print_json([asdict(row) for row in rows])
        return
    _print_table(rows, lengths, "forward and backward" if backward else "forward")


def run(lengths: list[int], names: list[str] | None, *, backward: bool, device: str) -> list[Row]:
    """All rows, softmax first at each length, so that ratios come from one run."""
    from rich.progress import track

    from qkv.cost import measure

    plan = [(n, name, mechanism, key_dim) for n in lengths for name, mechanism, key_dim in _contestants(names)]
    rows: list[Row] = []
    softmax = math.nan
    for n, name, mechanism, key_dim in track(plan, "timing", console=console(stderr=True), transient=True):
        taken = measure(_call(mechanism, n, key_dim, backward=backward, device=device), device)
        softmax = taken.milliseconds if name == "softmax" else softmax
        rows.append(Row(name, n, taken.milliseconds, softmax / taken.milliseconds, taken.peak_bytes))
    return rows


def _contestants(names: list[str] | None) -> list[tuple[str, "Attention", int]]:
    """Softmax with key_dim 64 first; kinds that like narrow keys beside a softmax just as narrow."""
    from qkv.attention import Softmax, build, kinds

    softmax = ("softmax", Softmax(), Softmax.typical_key_dim)
    chosen = names or [name for name in kinds if not kinds[name].materializes_weights]
    others = [(name, build(name), kinds[name].typical_key_dim) for name in chosen if name != "softmax"]
    narrow = sorted({key_dim for _, _, key_dim in others} - {Softmax.typical_key_dim})
    return [softmax, *((f"softmax, key_dim {dim}", Softmax(), dim) for dim in narrow), *others]


def _call(mechanism: "Attention", tokens: int, key_dim: int, *, backward: bool, device: str) -> Any:
    import torch

    random = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, 8, tokens, dim, generator=random, device=device, requires_grad=backward)
        for dim in (key_dim, key_dim, 64)
    )

    def forward() -> object:
        with torch.no_grad():
            return mechanism(q, k, v, causal=True)

    def forward_and_backward() -> object:
        return torch.autograd.grad(mechanism(q, k, v, causal=True).sum(), (q, k, v))

    return forward_and_backward if backward else forward


def _lengths(tokens: str) -> list[int]:
    try:
        lengths = [int(n) for n in tokens.split(",")]
    except ValueError:
        raise ValueError(
            f"--tokens {tokens!r}: expected whole numbers separated by commas, such as 4096,8192"
        ) from None
    if min(lengths) < 1:
        raise ValueError(f"--tokens {tokens!r}: a length must be at least 1")
    return lengths


def _print_table(rows: list[Row], lengths: list[int], what: str) -> None:
    from rich.table import Table

    columns = [f"{n:,} tokens" for n in lengths]
    title = f"{what}: milliseconds, how many times faster than softmax, peak memory"
    table = Table("kind", *columns, "growth", title=title, title_justify="left")
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        cells = [f"{r.milliseconds:,.1f} ms  {r.ratio_to_softmax:.1f}x  {r.peak_bytes / 2**20:,.0f} MiB" for r in mine]
        table.add_row(kind, *cells, _growth(mine))
    console().print(table)
    console().print(
        "growth: the exponent of time in length, from the shortest to the longest (2 is quadratic, 1 linear)"
    )


def _growth(rows: list[Row]) -> str:
    first, last = rows[0], rows[-1]
    if last.tokens == first.tokens:
        return "-"
    return f"{math.log(last.milliseconds / first.milliseconds) / math.log(last.tokens / first.tokens):.2f}"
