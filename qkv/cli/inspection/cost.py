"""`qkv cost`: the cost of a block, a model or any module, as a formula and a value."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inspection.cost_plan import (
    Batch,
    GpuOption,
    MeshOption,
    Network,
    Node,
    PlannedModel,
    PlanOptions,
    Precision,
    print_plan,
)
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.options import parse_changes
from qkv.cli.shared.parameters import Set
from qkv.cli.shared.plugin import Plugin, load_plugins

if TYPE_CHECKING:
    from qkv.cost import Check, CostReport, Shape
    from qkv.profile.blocks import BlockSpec
    from qkv.profile.spec import ProfileTarget
    from qkv.profile.timing.forecast import Forecast

_HELP = """attention, multi_head, feed_forward, encoder or decoder with widths; a task or task:preset; a run folder;
package.module:function; a Hugging Face config.json."""

DEFAULT_TOKENS = 128


Tokens = Annotated[
    int | None, typer.Option(help="Number of tokens, in the source if any (default: 128, or the model's maximum).")
]
NamedSizes = Annotated[
    list[str] | None, typer.Option(help="Value of another named size of --input. Repeatable.", metavar="NAME=VALUE")
]
InputSpecs = Annotated[
    list[str] | None, typer.Option("--input", help="Argument of the module, such as float[1,n,768]. Repeatable.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare all methods and torch's own counter, module by module.")
]
Recalibrate = Annotated[bool, typer.Option("--recalibrate", help="Measure the speed of this CPU again (with --time).")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print methods, terms, modules and elementwise operations as well.")
]


def cost(
    spec: Annotated[str, typer.Argument(help=_HELP, metavar="SPEC")],
    n: Tokens = None,
    m: Annotated[int | None, typer.Option(help="Number of tokens in the target (default: as in the source).")] = None,
    size: NamedSizes = None,
    input_: InputSpecs = None,
    set_: Set = None,
    d_in: Annotated[int | None, typer.Option(help="Width of the input (attention).")] = None,
    d_k: Annotated[int | None, typer.Option(help="Width of queries and keys.")] = None,
    d_v: Annotated[int | None, typer.Option(help="Width of values.")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="Width inside the feed-forward layer.")] = None,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 1,
    key_heads: Annotated[int | None, typer.Option(help="Heads of keys and values (default: --heads).")] = None,
    kind: Annotated[str, typer.Option(help="Attention kind, such as taylor(order=4).")] = "softmax",
    causal: Annotated[bool, typer.Option("--causal", help="Mask later tokens.")] = False,
    bias: Annotated[bool, typer.Option("--bias", help="Add biases to the projections.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print the arithmetic, line by line.")] = False,
    verify: Verify = False,
    compare: Annotated[str | None, typer.Option(help="Compare these attention kinds.", metavar="KIND,...")] = None,
    plot: Annotated[Path | None, typer.Option(help="SVG file of --compare (default: cost.svg).")] = None,
    time: Annotated[bool, typer.Option("--time", help="Predict and measure the seconds on this CPU.")] = False,
    recalibrate: Recalibrate = False,
    verbose: Verbose = False,
    depth: Annotated[int, typer.Option(help="Depth of the tree of modules that --verbose prints.")] = 3,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adagrad, rmsprop, adam or adamw.")] = "adam",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    mesh: MeshOption = None,
    gpu: GpuOption = None,
    node: Node = None,
    network: Network = None,
    batch: Batch = None,
    precision: Precision = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Count parameters, multiplications and memory exactly, each as a value and a formula with its range.

    Nothing is computed or downloaded. With --gpu: memory, bytes sent and shortest time of a training step on each
    device of a --mesh. Exit code 3: an operation is unknown, or two methods disagree.
    """
    load_plugins(plugin)
    planned = PlanOptions(mesh, gpu, network, node, batch, precision)
    sizes = _given(d_in=d_in, d_k=d_k, d_v=d_v, d_model=d_model, d_ff=d_ff)
    block = BlockOptions(sizes, heads, key_heads, kind, causal, bias)
    if recalibrate and not time:
        raise ValueError("--recalibrate measures the speed of this CPU, so it needs --time")
    output = OutputOptions(explain, verify, time, verbose, depth, json=json, markdown=markdown, latex=latex)
    if recalibrate:
        _recalibrate()
    call = CallOptions({**_given(n=n, m=m), **_parse_sizes(size)}, input_ or [], optimizer, set_)
    if planned.wanted:
        _require_plannable(output, compare)
        model = PlannedModel(spec, set_, call.inputs, call.sizes, optimizer)
        print_plan(model, planned, json=json)
    elif compare is not None:
        _require_comparable(spec, output, input_)
        _print_comparison(compare, block.attention_shape(DEFAULT_TOKENS if n is None else n), plot, output)
    else:
        _print_cost(spec, block, call, output)


def _given(**sizes: int | None) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size is not None}


def _recalibrate() -> None:
    from qkv.profile.timing.rates_cache import machine_rates

    machine_rates(remeasure=True)


def _print_comparison(kinds: str, shape: "Shape", plot: Path | None, output: "OutputOptions") -> None:
    from qkv.cli.tables.cost_compare import print_kinds

    print_kinds(kinds, shape, plot or Path("cost.svg"), time=output.time, json=output.json)


@dataclass(frozen=True)
class BlockOptions:
    """Options that describe a block by its widths."""

    widths: dict[str, int]
    heads: int
    key_heads: int | None
    kind: str
    causal: bool
    bias: bool

    def block_spec(self, name: str) -> "BlockSpec":
        """Return the block of this name; attention with a model width is multi-head attention."""
        from qkv.profile.blocks import BlockSpec

        by_model_width = "d_model" in self.widths and "d_in" not in self.widths
        block = "multi_head" if name == "attention" and by_model_width else name
        return BlockSpec(block, self.widths, self.heads, self.key_heads, self.kind, self.causal, self.bias)

    def attention_shape(self, n: int) -> "Shape":
        """Return the shape of the attention mechanism without projections."""
        from qkv.cost import Shape
        from qkv.layers import Heads

        if n < 1:
            raise ValueError(f"--n must be at least 1, got {n}")
        dims = self.widths.get("d_k"), self.widths.get("d_v")
        width = self.widths.get("d_model", 64 * self.heads)
        heads, key_heads, key_dim, value_dim = Heads(self.heads, self.key_heads, *dims).resolve(width)
        return Shape(1, heads, n, n, key_dim, value_dim, key_heads, causal=self.causal)


@dataclass(frozen=True)
class CallOptions:
    """Options of the call that is counted."""

    sizes: dict[str, int]
    inputs: list[str]
    optimizer: str
    changes: list[str] | None = None


@dataclass(frozen=True)
class OutputOptions:
    """Options of what is printed, and how."""

    explain: bool
    verify: bool
    time: bool
    verbose: bool
    depth: int
    json: bool
    markdown: bool
    latex: bool


@dataclass(frozen=True)
class CostResult:
    """A target, its report, and the extras that were requested."""

    target: "ProfileTarget"
    report: "CostReport"
    block_terms: dict[str, Any] | None
    """Formulas of a block's terms in all widths; None: not a block."""
    checks: "list[Check]"
    forecast: "Forecast | None"


def _require_plannable(output: OutputOptions, compare: str | None) -> None:
    """Raise for options that a plan would ignore."""
    options = {
        "--explain": output.explain,
        "--verify": output.verify,
        "--time": output.time,
        "--verbose": output.verbose,
        "--markdown": output.markdown,
        "--latex": output.latex,
        "--compare": compare,
    }
    ignored = [option for option, given in options.items() if given]
    if ignored:
        raise ValueError(f"--gpu prints its own tables and cannot be combined with {', '.join(ignored)}")


def _require_comparable(spec: str, output: OutputOptions, inputs: list[str] | None) -> None:
    """Raise for options that `--compare` would ignore."""
    if spec != "attention":
        raise ValueError(f"--compare compares attention kinds, so SPEC must be attention, got {spec!r}")
    options = {
        "--explain": output.explain,
        "--verify": output.verify,
        "--markdown": output.markdown,
        "--latex": output.latex,
        "--input": inputs,
    }
    ignored = [option for option, given in options.items() if given]
    if ignored:
        raise ValueError(f"--compare prints its own table and cannot be combined with {', '.join(ignored)}")


def _parse_sizes(texts: list[str] | None) -> dict[str, int]:
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not value.strip().isdigit() or not name.strip().isidentifier():
            raise ValueError(f"--size {text!r}: expected NAME=VALUE with a whole number, such as b=4")
        found[name.strip()] = int(value)
    return found


def _print_cost(spec: str, block: BlockOptions, call: CallOptions, output: OutputOptions) -> None:
    target, report, block_terms = _analyze(spec, block, call)
    _exit_if_unknown(report, json=output.json)
    checks = _verify(report) if output.verify else []
    forecast = _forecast(report) if output.time else None
    _print(CostResult(target, report, block_terms, checks, forecast), output)
    if not report.agree or not all(check.ok for check in checks):
        raise typer.Exit(3)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect cycles rarely: the libraries create a million objects, and all of them stay."""
    threshold = gc.get_threshold()
    gc.set_threshold(100_000)
    atexit.register(_freeze_objects)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)


def _freeze_objects() -> None:
    """Exempt all objects from the last garbage collections, which take half a second.

    If triton is built with nanobind, as 3.9 is, the objects must be collected: nanobind prints a leak for each that is
    alive at the end.
    """
    library = sys.modules.get("triton._C.libtriton")
    if library is None or all(type(part).__module__ != "nanobind" for part in vars(library).values()):
        gc.freeze()


@_rare_garbage_collection()
def _analyze(
    spec: str, options: BlockOptions, call: CallOptions
) -> "tuple[ProfileTarget, CostReport, dict[str, Any] | None]":
    """Return the target, its report and, for a block, its terms in all widths."""
    from qkv.cost import Input, analyze
    from qkv.cost.input_spec import size_names
    from qkv.profile.blocks import REQUIRED_WIDTHS
    from qkv.profile.spec import ProfileTarget, resolve_spec

    block = options.block_spec(spec) if spec in REQUIRED_WIDTHS else None
    if block is None:
        target = resolve_spec(spec, call.inputs, parse_changes(call.changes))
    else:
        inputs = (Input.parse(f"float[1,n,{block.input_width}]"),)
        target = ProfileTarget(block.kind, block.build(), inputs, block.options)
    tokens = min(DEFAULT_TOKENS, target.max_tokens or DEFAULT_TOKENS)
    sizes = {"n": tokens, "m": call.sizes.get("n", tokens), **call.sizes}
    _require_sizes(size_names(target.inputs), sizes)
    report = analyze(target.module, target.inputs, sizes, optimizer=call.optimizer, options=target.options)
    if block is None:
        return target, report, None
    return target, *_in_all_widths(report, block)


def _require_sizes(names: list[str], sizes: dict[str, int]) -> None:
    """Raise for a named size without a value, or with one below 1."""
    for name in names:
        if name not in sizes:
            raise ValueError(f"--input names the size {name!r}: give it a value, such as --size {name}=64")
        if sizes[name] < 1:
            option = f"--{name} " if name in ("n", "m") else f"--size {name}="
            raise ValueError(f"{option}{sizes[name]} must be at least 1")


def _in_all_widths(report: "CostReport", block: "BlockSpec") -> "tuple[CostReport, dict[str, Any]]":
    """Return the report with parameters as a formula of the widths, and the formulas of all terms."""
    from qkv.cost import Quantity

    multiplications, parameters = block.formulas(report.sizes["n"])
    terms = {
        name: Quantity(quantity.value, parameters.get(name, quantity.formula), holds=quantity.holds)
        for name, quantity in report.parameters.terms.items()
    }
    total = sum(term.formula for term in terms.values() if term.formula is not None)
    found = replace(
        report,
        sizes=report.sizes | block.widths,
        parameters=Quantity(report.parameters.value, total, terms, holds=report.parameters.holds),
    )
    return found, {"parameters": parameters, "multiplications": multiplications}


def _exit_if_unknown(report: "CostReport", *, json: bool) -> None:
    """Exit with code 3 if an operation has no known cost."""
    if not report.unknown:
        return
    if json:
        from qkv.cost.to_json import to_record

        record = to_record(report)
        for name in ("multiplications", "flops", "methods", "backward"):
            record[name] = {"value": None, "formula": None, "holds": None, "terms": {}}
        print_json(record)
    operations = ", ".join(f"{name} ({times} times)" for name, times in sorted(report.unknown.items()))
    console(stderr=True).print(
        f"{report.name} runs operations of unknown cost, so there is no result: {operations}",
        markup=False,
        soft_wrap=True,
    )
    raise typer.Exit(3)


def _verify(report: "CostReport") -> "list[Check]":
    from qkv.cost import verify

    return verify(report)


def _forecast(report: "CostReport") -> "Forecast":
    from qkv.profile.timing.forecast import forecast

    return forecast(report.call, report.sizes)


def _print(result: CostResult, output: OutputOptions) -> None:
    from qkv.cli.tables import cost as cost_table
    from qkv.cli.tables import cost_text

    report, label, note = result.report, result.target.label, result.target.note
    if output.json:
        from qkv.cost.to_json import to_record

        extras = cost_text.extras_to_record(result.checks, result.forecast)
        print_json(to_record(report) | extras | {"spec": label, "note": note})
    elif output.markdown or output.latex:
        cost_text.print_document(report, label, note, latex=output.latex)
    else:
        cost_table.print_report(report, label, note)
        if output.verbose:
            cost_table.print_details(report, output.depth)
        if output.explain and result.block_terms is not None:
            cost_table.print_arithmetic(report, result.block_terms)
        cost_table.print_checks(result.checks)
        if result.forecast is not None:
            cost_table.print_forecast(result.forecast)
