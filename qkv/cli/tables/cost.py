"""The tables of `qkv cost`: totals by default, everything else with `--verbose` or an option of its own."""

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, format_count
from qkv.cli.tables.layout import print_rows
from qkv.cli.tables.units import format_amount, format_bytes

if TYPE_CHECKING:
    from qkv.cost import Check, CostReport, Quantity
    from qkv.cost.formula_range import Holds
    from qkv.profile.timing.forecast import Forecast

_MEMORY = {"saved": "saved for backward", "peak": "inference peak", "cache": "cache while decoding"}


def print_report(report: "CostReport", label: str, note: str | None) -> None:
    """Print the label with a note on its sizes, then one table of totals and where their formulas hold."""
    screen = console()
    sizes = ", ".join(f"{name} = {size:,}" for name, size in report.sizes.items())
    inputs = ", ".join(map(str, report.call.inputs))
    screen.print(f"{label} ({inputs}) at {sizes or 'these sizes'}", markup=False, style="bold", soft_wrap=True)
    if note is not None:
        screen.print(note, soft_wrap=True, markup=False)
    shared = _shared_range(report)
    rows = [
        ("parameters", *_amounts(report.parameters.value), _formula(report.parameters, shared)),
        ("multiplications needed", *_amounts(report.needed.value), _formula(report.needed, shared)),
        ("multiplications executed", *_amounts(report.executed.value), _formula(report.executed, shared)),
        ("FLOPs executed", *_amounts(2 * (report.executed.value or 0), "FLOP"), "2 per multiplication"),
        ("backward", *_amounts(report.backward["inputs with gradient"]), "multiplications, counted"),
        ("weights", *_bytes(report.weights.parameters), "bytes of parameters"),
        *(
            (_MEMORY[name], *_bytes(quantity.value), _formula(quantity, shared))
            for name, quantity in report.memory.items()
        ),
    ]
    print_rows(("quantity", "exact", "about", "formula"), rows)
    _print_agreement(report, shared)


def print_details(report: "CostReport", depth: int) -> None:
    """Print the methods, terms, modules, all memory, elementwise operations and conventions."""
    from qkv.cost import CONVENTION

    shared = _shared_range(report)
    rows = [(name, format_count(one.value), _formula(one, shared)) for name, one in report.methods.items()]
    print_rows(("method", "executed", "formula"), rows, title="multiplications executed, by method")
    _print_terms(report, shared)
    _print_tree(report, depth)
    _print_memory(report, shared)
    _print_elementwise(report)
    for line in CONVENTION:
        console().print(f"- {line}", style="dim", markup=False)


def print_arithmetic(report: "CostReport", formulas: dict[str, dict[str, Any]]) -> None:
    """Print each term as a formula, with the sizes substituted, and its value."""
    from qkv.cost import evaluate, format_formula

    screen = console()
    for title, terms in formulas.items():
        screen.print(f"\n[bold]{title}[/]")
        total = 0
        for name, formula in terms.items():
            if formula is None:
                screen.print(f"  {name}: no polynomial of the sizes", markup=False)
                continue
            value = evaluate(formula, report.sizes)
            total += int(value)
            text = format_formula(formula)
            screen.print(
                f"  {name} = {text} = {_substitute(text, report.sizes)} = {value:,}", markup=False, soft_wrap=True
            )
        screen.print(f"  together {total:,}", markup=False)


def _substitute(text: str, sizes: dict[str, int]) -> str:
    return re.sub(r"[a-z_]\w*", lambda match: str(sizes.get(match[0], match[0])), text)


def print_checks(checks: "list[Check]") -> None:
    """Print a table of modules by methods."""
    if not checks:
        return
    rows = []
    for check in checks:
        cells = [format_count(value) for value in (check.declared, check.derived, check.counted, check.torch)]
        cells[3] += f" (+{check.unseen:,} it does not see)" if check.unseen and check.torch is not None else ""
        rows.append((check.part, *cells, "✓" if check.ok else "✗"))
    headings = ("part", "declared", "derived", "counted", "torch's counter", "equal")
    print_rows(headings, rows, title="verified", wrapped=4)


def print_forecast(forecast: "Forecast") -> None:
    """Print predicted and measured time, the parts of the prediction, and the age of the calibration."""
    measured = "not measured: too large to run here, or in half precision"
    if forecast.measured is not None:
        measured = f"measured {forecast.measured * 1e3:.3g} ms, ratio {forecast.ratio:.2f}"
    screen = console()
    screen.print(f"time of a forward pass on this CPU: predicted {forecast.predicted * 1e3:.3g} ms, {measured}")
    parts = (f"{category} {seconds * 1e3:.3g}" for category, seconds in forecast.parts.items())
    screen.print(f"predicted, in ms: {' + '.join(parts)}")
    print_calibration_age()


def print_calibration_age() -> None:
    """Print how long ago the speed of this machine was measured, and the option that measures it again."""
    from qkv.profile.timing.rates_cache import calibration_age

    age = calibration_age()
    if age is None:
        return
    console().print(
        f"calibrated {format_age(age)}; both times depend on the load of the machine. "
        "If the ratio is far from 1, measure again on an idle machine: --recalibrate",
        style="dim",
    )


def format_age(seconds: float) -> str:
    """Return an age as text, such as `3 hours ago`."""
    for length, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        count = int(seconds // length)
        if count:
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"


def _amounts(value: int | None, unit: str = "") -> tuple[str, str]:
    return format_count(value), format_amount(value, unit)


def _bytes(value: int | None) -> tuple[str, str]:
    return format_count(value), format_bytes(value)


def _shared_range(report: "CostReport") -> "Holds | None":
    """Return the range that most formulas have; it is printed once."""
    quantities = [report.needed, report.executed, *report.memory.values(), *report.methods.values()]
    ranges = [tuple(one.holds.items()) for one in quantities if one.holds]
    return dict(Counter(ranges).most_common(1)[0][0]) if ranges else None


def _print_agreement(report: "CostReport", shared: "Holds | None") -> None:
    from qkv.cost.formula_range import format_holds

    screen = console()
    agreeing = [name for name, method in report.methods.items() if method.value is not None]
    if not report.agree:
        screen.print(f"the methods disagree: {', '.join(agreeing)}", style="red")
    elif len(agreeing) > 1:
        screen.print(f"{len(agreeing)} methods agree: {', '.join(agreeing)}")
    if shared is not None:
        screen.print(f"formulas verified for {format_holds(shared)}, unless a row says otherwise", markup=False)
    if report.executed.value is not None and report.executed.value < (report.needed.value or 0):
        screen.print(EXECUTED_BELOW_NEEDED, markup=False)


EXECUTED_BELOW_NEEDED = (
    "executed < needed: needed is the count of the linear form; for short sequences the code runs the quadratic form, "
    "which multiplies less"
)


def _print_terms(report: "CostReport", shared: "Holds | None") -> None:
    if report.methods["declared"].value is None:
        return
    executed = report.executed.terms
    rows = [
        (
            name,
            format_count(term.value),
            format_count(executed[name].value if name in executed else 0),
            _formula(term, shared),
        )
        for name, term in report.needed.terms.items()
    ]
    for name, term in executed.items():
        if name not in report.needed.terms:
            rows.append((name, "0", format_count(term.value), ""))
    print_rows(("term", "needed", "executed", "needed, formula"), rows, title="multiplications, as declared")


def _print_tree(report: "CostReport", depth: int) -> None:
    """Print the tree of modules; each row includes its submodules."""
    module, total = report.call.module, report.methods["counted"].value or 0
    names = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    tied = {weight for weight, times in names.items() if times > 1}
    rows = []
    for path, part in module.named_modules():
        level = path.count(".") + 1 if path else 0
        if level > depth:
            continue
        within = sum(n for p, n in report.modules.items() if not path or p == path or p.startswith(f"{path}."))
        count = sum(p.numel() for p in part.parameters())
        share = f"{within / total:.1%}" if total else "-"
        name = "  " * level + (path.rpartition(".")[2] or "(all)")
        owned = format_amount(count) + (" tied" if any(id(p) in tied for p in part.parameters(recurse=False)) else "")
        rows.append((name, owned, format_amount(within), share, type(part).__name__))
    print_rows(("module", "parameters", "multiplications", "share", "class"), rows, title="modules")


def _print_memory(report: "CostReport", shared: "Holds | None") -> None:
    from dataclasses import asdict

    rows = [(name, *_bytes(value), "") for name, value in asdict(report.weights).items()]
    for name, quantity in report.memory.items():
        rows.append((_MEMORY[name], *_bytes(quantity.value), _formula(quantity, shared)))
    for name, quantity in report.cache_by_dtype.items():
        rows.append((f"cache in {name}", *_bytes(quantity.value), _formula(quantity, shared)))
    print_rows(("memory", "bytes", "about", "formula"), rows)


def _print_elementwise(report: "CostReport") -> None:
    from qkv.cost.aten import OP_CLASSES

    rows = [(name, f"{value:,}", OP_CLASSES[name]) for name, value in report.by_op_class.items()]
    if rows:
        print_rows(("class", "operations", "includes"), rows, title="elementwise operations (not in the totals)")


def _formula(quantity: "Quantity", shared: "Holds | None") -> str:
    """Return the formula, where it holds if that is not the shared range, and the note."""
    from qkv.cost import format_formula
    from qkv.cost.formula_range import format_holds

    text = "" if quantity.formula is None else format_formula(quantity.formula)
    where = f"for {format_holds(quantity.holds)}" if quantity.holds and quantity.holds != shared else ""
    return "\n".join(part for part in (text, where, quantity.note) if part)
