"""The tables of `qkv cost`."""

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, format_count

if TYPE_CHECKING:
    from qkv.cost import Check, CostReport, Quantity
    from qkv.profile.timing.forecast import Forecast


def print_report(report: "CostReport", label: str, note: str | None, depth: int) -> None:
    """Print the label with a note on its sizes, then totals, terms, modules, memory, elementwise work, conventions."""
    from rich.markup import escape

    from qkv.cost import CONVENTION

    screen = console()
    sizes = ", ".join(f"{name} = {size:,}" for name, size in report.sizes.items())
    inputs = ", ".join(map(str, report.call.inputs))
    screen.print(f"[bold]{escape(label)}[/] ({escape(inputs)}) at {sizes or 'these sizes'}")
    if note is not None:
        screen.print(note, soft_wrap=True, markup=False)
    _print_figures(report)
    _print_terms(report)
    _print_tree(report, depth)
    _print_memory(report)
    _print_elementwise(report)
    for line in CONVENTION:
        screen.print(f"- {line}", style="dim", soft_wrap=True, markup=False)


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
            screen.print(f"  {name} = {text} = {_substitute(text, report.sizes)} = {value:,}", markup=False)
        screen.print(f"  together {total:,}", markup=False)


def _substitute(text: str, sizes: dict[str, int]) -> str:
    return re.sub(r"[a-z_]\w*", lambda match: str(sizes.get(match[0], match[0])), text)


def print_checks(checks: "list[Check]") -> None:
    """Print a table of modules by methods."""
    if not checks:
        return
    from rich.table import Table

    table = Table(
        "part", "declared", "derived", "counted", "torch's counter", "", title="verified", title_justify="left"
    )
    for check in checks:
        cells = [format_count(value) for value in (check.declared, check.derived, check.counted, check.torch)]
        cells[3] += f" (+{check.unseen:,} it does not see)" if check.unseen and check.torch is not None else ""
        table.add_row(check.part, *cells, "[green]✓[/]" if check.ok else "[red]✗[/]")
    console().print(table)


def print_forecast(forecast: "Forecast") -> None:
    """Print predicted and measured time, and the parts of the prediction."""
    measured = "not measured: too large to run here, or in half precision"
    if forecast.measured is not None:
        measured = f"measured {forecast.measured * 1e3:.3g} ms, ratio {forecast.ratio:.2f}"
    console().print(
        f"time of a forward pass on this CPU: predicted {forecast.predicted * 1e3:.3g} ms, {measured}", soft_wrap=True
    )
    parts = (f"{category} {seconds * 1e3:.3g}" for category, seconds in forecast.parts.items())
    console().print(f"predicted, in ms: {' + '.join(parts)}", soft_wrap=True)


def _print_figures(report: "CostReport") -> None:
    from rich.table import Table

    table = Table("", "formula", "value")
    rows = {
        "parameters": report.parameters,
        "multiplications needed": report.needed,
        "multiplications executed": report.executed,
    }
    for name, quantity in rows.items():
        table.add_row(name, _formula(quantity), format_count(quantity.value))
    table.add_row("FLOPs executed", "", format_count(2 * (report.executed.value or 0)))
    for name, value in report.backward.items():
        table.add_row(f"backward, {name}", "", format_count(value))
    for name, method in report.methods.items():
        table.add_row(f"executed, {name}", _formula(method), format_count(method.value))
    console().print(table)
    console().print("all methods agree" if report.agree else "[red]the methods disagree[/]")


def _print_terms(report: "CostReport") -> None:
    if report.methods["declared"].value is None:
        return
    from rich.table import Table

    table = Table("term", "needed", "", "executed", title="multiplications, as declared", title_justify="left")
    executed = report.executed.terms
    for name, term in report.needed.terms.items():
        table.add_row(
            name,
            _formula(term),
            format_count(term.value),
            format_count(executed[name].value if name in executed else 0),
        )
    for name in executed:
        if name not in report.needed.terms:
            table.add_row(name, "", "0", format_count(executed[name].value))
    console().print(table)


def _print_tree(report: "CostReport", depth: int) -> None:
    """Print the tree of modules; each row includes its submodules."""
    from rich.table import Table

    module, total = report.call.module, report.methods["counted"].value or 0
    names = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    tied = {weight for weight, times in names.items() if times > 1}
    table = Table("module", "kind", "parameters", "multiplications", "share", title="modules", title_justify="left")
    for path, part in module.named_modules():
        level = path.count(".") + 1 if path else 0
        if level > depth:
            continue
        within = sum(n for p, n in report.modules.items() if not path or p == path or p.startswith(f"{path}."))
        count = sum(p.numel() for p in part.parameters())
        share = f"{within / total:.1%}" if total else "-"
        name = "  " * level + (path.rpartition(".")[2] or "(all)")
        owned = f"{count:,}" + (" tied" if any(id(p) in tied for p in part.parameters(recurse=False)) else "")
        table.add_row(name, type(part).__name__, owned, f"{within:,}", share)
    console().print(table)


def _print_memory(report: "CostReport") -> None:
    from dataclasses import asdict

    from rich.table import Table

    table = Table("memory", "formula", "bytes", title_justify="left")
    for name, value in asdict(report.weights).items():
        table.add_row(name, "", f"{value:,}")
    words = {"saved": "saved for backward", "peak": "inference peak", "cache": "cache while decoding"}
    for name, quantity in report.memory.items():
        table.add_row(words[name], _formula(quantity), format_count(quantity.value))
    for name, quantity in report.cache_by_dtype.items():
        table.add_row(f"cache in {name}", _formula(quantity), format_count(quantity.value))
    console().print(table)


def _print_elementwise(report: "CostReport") -> None:
    from rich.table import Table

    from qkv.cost.aten import OP_CLASSES

    table = Table("class", "operations", "includes", title="elementwise, not in multiplications", title_justify="left")
    for name, value in report.by_op_class.items():
        table.add_row(name, f"{value:,}", OP_CLASSES[name])
    console().print(table)


def _formula(quantity: "Quantity") -> str:
    from qkv.cost import format_formula

    text = "" if quantity.formula is None else format_formula(quantity.formula)
    note = f"({quantity.holds})" if quantity.holds else ""
    return " ".join(part for part in (text, note) if part).replace("[", r"\[")
