"""`qkv cost`: what a block, a model or anybody's module costs, as a formula and a number."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.plugin import Plugin, load_plugins

if TYPE_CHECKING:
    from qkv.cost import Check, CostReport
    from qkv.profile.blocks import BlockSpec
    from qkv.profile.spec import ProfileTarget

_HELP = """attention, multi_head, feed_forward, encoder or decoder by sizes; a task or task:preset; a run folder;
package.module:function; a Hugging Face config.json."""

TOKENS = 128
"""Where no length is asked for."""


def cost(
    spec: Annotated[str, typer.Argument(help=_HELP, metavar="SPEC")],
    n: Annotated[
        int | None,
        typer.Option(help="Tokens; of the source, if there are two sequences. 128 without, or what the model takes."),
    ] = None,
    m: Annotated[int | None, typer.Option(help="Tokens of the target; as many as of the source without.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Another named size of --input. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    input_: Annotated[
        list[str] | None, typer.Option("--input", help="What the module is called with, such as float[1,n,768].")
    ] = None,
    d_in: Annotated[int | None, typer.Option(help="Width of the input (attention).")] = None,
    d_k: Annotated[int | None, typer.Option(help="Width of queries and keys.")] = None,
    d_v: Annotated[int | None, typer.Option(help="Width of values.")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="Width inside the feed-forward layer.")] = None,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 1,
    key_heads: Annotated[int | None, typer.Option(help="Heads of keys and values.")] = None,
    kind: Annotated[str, typer.Option(help="Attention kind, such as taylor(order=4).")] = "softmax",
    causal: Annotated[bool, typer.Option("--causal", help="No token sees a later one.")] = False,
    bias: Annotated[bool, typer.Option("--bias", help="Projections with biases.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="The arithmetic, line by line.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="All roads and torch's own counter, part by part.")] = False,
    compare: Annotated[str | None, typer.Option(help="Kinds beside each other.", metavar="KIND,...")] = None,
    plot: Annotated[Path | None, typer.Option(help="SVG of --compare: cost.svg without.")] = None,
    time: Annotated[bool, typer.Option("--time", help="Seconds: predicted for this CPU, and measured.")] = False,
    depth: Annotated[int, typer.Option(help="How deep the tree of modules is shown.")] = 3,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adagrad, rmsprop, adam or adamw.")] = "adam",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Count exactly what something costs: parameters, multiplications, memory, each as formula and number.

    Nothing is computed or downloaded. Exit code 3: an operation is unknown, or two roads disagree.
    """
    load_plugins(plugin)
    widths = {"d_in": d_in, "d_k": d_k, "d_v": d_v, "d_model": d_model, "d_ff": d_ff}
    tokens = {name: count for name, count in (("n", n), ("m", m)) if count is not None}
    asked = _Asked({k: v for k, v in widths.items() if v is not None}, heads, key_heads, kind, causal, bias)
    show = _Shown(explain, verify, time, depth, json=json, markdown=markdown, latex=latex)
    if compare is not None:
        from qkv.cli.tables.cost_compare import compare_kinds

        _require_comparable(spec, show, input_)
        compare_kinds(compare, asked.shape(TOKENS if n is None else n), plot or Path("cost.svg"), time=time, json=json)
        return
    _one(spec, asked, {**tokens, **_named_sizes(size)}, input_ or [], optimizer, show)


def _require_comparable(spec: str, show: "_Shown", inputs: list[str] | None) -> None:
    """Refuse what `--compare` would not heed."""
    if spec != "attention":
        raise ValueError(f"--compare sets attention kinds beside each other, so SPEC must be attention, got {spec!r}")
    unheard = {"--explain": show.explain, "--verify": show.verify, "--markdown": show.markdown, "--latex": show.latex}
    ignored = [option for option, given in {**unheard, "--input": inputs}.items() if given]
    if ignored:
        raise ValueError(f"--compare has a table and a picture of its own, without {', '.join(ignored)}")


@dataclass(frozen=True)
class _Asked:
    """The sizes of a block."""

    widths: dict[str, int]
    heads: int
    key_heads: int | None
    kind: str
    causal: bool
    bias: bool

    def block(self, spec: str) -> "BlockSpec":
        from qkv.profile.blocks import BlockSpec

        given = "d_model" in self.widths and "d_in" not in self.widths
        name = "multi_head" if spec == "attention" and given else spec
        return BlockSpec(name, self.widths, self.heads, self.key_heads, self.kind, self.causal, self.bias)

    def shape(self, n: int) -> Any:
        """Of the mechanism alone."""
        from qkv.cost import Shape
        from qkv.layers import Heads

        if n < 1:
            raise ValueError(f"--n must be at least 1, got {n}")
        dims = self.widths.get("d_k"), self.widths.get("d_v")
        width = self.widths.get("d_model", 64 * self.heads)
        heads, key_heads, key_dim, value_dim = Heads(self.heads, self.key_heads, *dims).resolve(width)
        return Shape(1, heads, n, n, key_dim, value_dim, key_heads, causal=self.causal)


@dataclass(frozen=True)
class _Shown:
    """What is printed, and how."""

    explain: bool
    verify: bool
    time: bool
    depth: int
    json: bool
    markdown: bool
    latex: bool


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Python looks for cycles every 700 new objects, and at its end: the libraries are a million, and all stay."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@_rarely_collecting()
def _counted(
    spec: str, asked: _Asked, sizes: dict[str, int], inputs: list[str], optimizer: str
) -> "tuple[ProfileTarget, CostReport, dict[str, Any] | None]":
    """What it is, what it costs and, of a block, its terms in all sizes."""
    from qkv.cost import Input, analyze
    from qkv.profile.blocks import REQUIRED_WIDTHS
    from qkv.profile.spec import ProfileTarget, resolve_spec

    block = asked.block(spec) if spec in REQUIRED_WIDTHS else None
    if block is not None:
        subject = ProfileTarget(block.kind, block.build(), (Input.parse(f"float[1,n,{block.input_width}]"),), block.options)
    else:
        subject = resolve_spec(spec, inputs)
    usual = min(TOKENS, subject.max_tokens or TOKENS)
    sizes = {"n": usual, "m": sizes.get("n", usual), **sizes}
    report = analyze(subject.module, subject.inputs, sizes, optimizer=optimizer, options=subject.options)
    return subject, *((report, None) if block is None else _in_all_sizes(report, block))


def _one(spec: str, asked: _Asked, sizes: dict[str, int], inputs: list[str], optimizer: str, show: _Shown) -> None:
    subject, report, lines = _counted(spec, asked, sizes, inputs, optimizer)
    _refuse_unknown(report, show)
    ticks = _verified(report) if show.verify else []
    forecast = _forecast(report) if show.time else None
    _print(report, subject, show, (lines if show.explain else None, ticks, forecast))
    if not report.agree or not all(tick.ok for tick in ticks):
        raise typer.Exit(3)


def _in_all_sizes(report: "CostReport", block: "BlockSpec") -> "tuple[CostReport, dict[str, Any]]":
    """A block's parameters as a formula of its widths, and its terms in all sizes for the arithmetic."""
    from qkv.cost import Quantity

    multiplications, parameters = block.formulas(report.sizes["n"])
    terms = {
        name: Quantity(quantity.value, parameters.get(name, quantity.formula))
        for name, quantity in report.parameters.terms.items()
    }
    whole = sum(term.formula for term in terms.values() if term.formula is not None)
    found = replace(
        report,
        sizes=report.sizes | block.widths,
        parameters=Quantity(report.parameters.value, whole, terms),
    )
    return found, {"parameters": parameters, "multiplications": multiplications}


def _refuse_unknown(report: "CostReport", show: _Shown) -> None:
    if not report.unknown:
        return
    if show.json:
        from qkv.cost.to_json import to_record

        record = to_record(report)
        for name in ("multiplications", "flops", "roads", "backward"):
            record[name] = {"value": None, "formula": None, "terms": {}}
        print_json(record)
    listed = ", ".join(f"{name} ({times} times)" for name, times in sorted(report.unknown.items()))
    console(stderr=True).print(
        f"{report.name} runs operations of unknown cost, so there is no number: {listed}", markup=False, soft_wrap=True
    )
    raise typer.Exit(3)


def _verified(report: "CostReport") -> "list[Check]":
    from qkv.cost import verify

    return verify(report)


def _forecast(report: "CostReport") -> Any:
    from qkv.profile.timing.forecast import forecast

    return forecast(report.call, report.sizes)


def _print(report: "CostReport", subject: "ProfileTarget", show: _Shown, extras: tuple[Any, ...]) -> None:
    from qkv.cli.tables import cost as cost_table
    from qkv.cli.tables import cost_text

    lines, ticks, timing = extras
    if show.json:
        from qkv.cost.to_json import to_record

        named = {"spec": subject.label, "note": subject.note}
        print_json(to_record(report) | cost_text.plain_extras(ticks, timing) | named)
    elif show.markdown or show.latex:
        cost_text.print_document(report, subject.label, subject.note, latex=show.latex)
    else:
        cost_table.print_report(report, subject.label, subject.note, show.depth)
        if lines is not None:
            cost_table.print_arithmetic(report, lines)
        cost_table.print_ticks(ticks)
        if timing is not None:
            cost_table.print_timing(timing)


def _named_sizes(texts: list[str] | None) -> dict[str, int]:
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not value.strip().isdigit() or not name.strip().isidentifier():
            raise ValueError(f"--size {text!r}: expected NAME=VALUE with a whole number, such as b=4")
        found[name.strip()] = int(value)
    return found
