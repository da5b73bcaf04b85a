"""`qkv bench attention`: time and memory of every kind against softmax, on this machine."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.completion import complete_kind
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.layout import split_columns

if TYPE_CHECKING:
    from qkv.attention import Attention

bench = typer.Typer(help="Speed and memory on this machine.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Speed and memory on this machine."""


@dataclass(frozen=True)
class Row:
    """Time and memory of one kind at one length."""

    kind: str
    tokens: int
    milliseconds: float
    ratio_to_softmax: float
    """Time of softmax at the same length divided by this time."""
    peak_bytes: int


@bench.command("attention")
def bench_attention(
    tokens: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "4096,8192,16384,32768",
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only this kind, against softmax. Repeatable.", autocompletion=complete_kind),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Time forward and backward.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Time each attention kind against softmax: causal, 1 sequence, 8 heads, value_dim 64, float32."""
    load_plugins(plugin)
    lengths = _parse_lengths(tokens)
    device = choose_device(device)
    rows = run(lengths, kind, backward=backward, device=device)
    if json:
        print_json([asdict(row) for row in rows])
        return
    _print_table(rows, lengths, "forward and backward" if backward else "forward")


@dataclass(frozen=True)
class _Candidate:
    """A mechanism to time and its row label."""

    label: str
    mechanism: "Attention"
    key_dim: int


def run(lengths: list[int], names: list[str] | None, *, backward: bool, device: str) -> list[Row]:
    """Return all rows, the softmax baseline first at each length, so that ratios come from one run."""
    from rich.progress import track

    from qkv.cost import measure

    candidates = _candidates(names)
    baseline = candidates[0]
    plan = [(n, candidate) for n in lengths for candidate in candidates]
    rows: list[Row] = []
    baseline_ms = math.nan
    for n, candidate in track(plan, "timing", console=console(stderr=True), transient=True):
        call = _call(candidate.mechanism, n, candidate.key_dim, backward=backward, device=device)
        measured = measure(call, device)
        if candidate is baseline:
            baseline_ms = measured.milliseconds
        ratio = baseline_ms / measured.milliseconds
        rows.append(Row(candidate.label, n, measured.milliseconds, ratio, measured.peak_bytes))
    return rows


def _candidates(names: list[str] | None) -> list[_Candidate]:
    """Return softmax as the baseline, softmax at each key_dim of the other kinds, and the other kinds."""
    from qkv.attention import Softmax, build, kinds

    chosen = names or [name for name in kinds if not kinds[name].materializes_weights]
    others = [
        _Candidate(name, build(name), kinds[name].typical_key_dim) for name in chosen if kinds[name] is not Softmax
    ]
    key_dims = sorted({candidate.key_dim for candidate in others} - {Softmax.typical_key_dim})
    baseline = _Candidate("softmax", Softmax(), Softmax.typical_key_dim)
    narrow = [_Candidate(f"softmax, key_dim {dim}", Softmax(), dim) for dim in key_dims]
    return [baseline, *narrow, *others]


def _call(mechanism: "Attention", tokens: int, key_dim: int, *, backward: bool, device: str) -> Any:
    import torch

    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, 8, tokens, dim, generator=generator, device=device, requires_grad=backward)
        for dim in (key_dim, key_dim, 64)
    )

    def forward() -> object:
        with torch.no_grad():
            return mechanism(q, k, v, causal=True)

    def forward_and_backward() -> object:
        return torch.autograd.grad(mechanism(q, k, v, causal=True).sum(), (q, k, v))

    return forward_and_backward if backward else forward


def _parse_lengths(tokens: str) -> list[int]:
    try:
        lengths = [int(n) for n in tokens.split(",")]
    except ValueError:
        raise ValueError(
            f"--tokens {tokens!r}: expected whole numbers separated by commas, such as 4096,8192"
        ) from None
    if min(lengths) < 1:
        raise ValueError(f"--tokens {tokens!r}: a length must be at least 1")
    return lengths


def _print_table(rows: list[Row], lengths: list[int], passes: str) -> None:
    """Print a table of kinds by lengths; several on a narrow screen."""
    from rich.table import Table

    kinds = list(dict.fromkeys(row.kind for row in rows))

    def make_table(chosen: Sequence[int]) -> Table:
        title = f"{passes}: milliseconds, speedup over softmax, peak memory"
        table = Table("kind", title=title, title_justify="left")
        for heading in (*(f"{n:,} tokens" for n in chosen), "growth"):
            table.add_column(heading, no_wrap=True)
        for kind in kinds:
            found = [row for row in rows if row.kind == kind]
            cells = [_format_row(row) for row in found if row.tokens in chosen]
            table.add_row(kind, *cells, _growth(found))
        return table

    screen = console()
    for table in split_columns(lengths, make_table, screen.width):
        screen.print(table)
    screen.print("growth: exponent of time in length between the shortest and the longest (2: quadratic, 1: linear)")


def _format_row(row: Row) -> str:
    return f"{row.milliseconds:,.1f} ms  {row.ratio_to_softmax:.1f}x  {row.peak_bytes / 2**20:,.0f} MiB"


def _growth(rows: list[Row]) -> str:
    first, last = rows[0], rows[-1]
    if last.tokens == first.tokens:
        return "-"
    return f"{math.log(last.milliseconds / first.milliseconds) / math.log(last.tokens / first.tokens):.2f}"
