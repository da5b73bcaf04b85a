"""`qkv cost` as Markdown, LaTeX or JSON."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import format_count

if TYPE_CHECKING:
    from qkv.cost import Check, CostReport, Quantity
    from qkv.profile.timing.forecast import Forecast


def print_document(report: "CostReport", label: str, note: str | None, *, latex: bool) -> None:
    """Print the totals as a table, and the note on the sizes if there is one."""
    rows = {
        "parameters": report.parameters,
        "multiplications needed": report.needed,
        "multiplications executed": report.executed,
        **{f"needed: {name}": term for name, term in report.needed.terms.items()},
        **{f"bytes: {name}": quantity for name, quantity in report.memory.items()},
    }
    sizes = ", ".join(f"{name} = {size}" for name, size in report.sizes.items())
    lines = _latex(rows, f"{label}, {sizes}") if latex else _markdown(rows, f"{label}, {sizes}")
    if note is not None:
        lines.append(_escape(note) if latex else f"- {note}")
    sys.stdout.write("\n".join(lines) + "\n")


def extras_to_record(checks: "list[Check]", forecast: "Forecast | None") -> dict[str, Any]:
    """Return the checks and the forecast as JSON data."""
    extras: dict[str, Any] = {}
    if checks:
        extras["verified"] = [{**asdict(check), "ok": check.ok} for check in checks]
    if forecast is not None:
        from qkv.profile.timing.rates_cache import calibration_age

        age = calibration_age()
        extras["time"] = {"predicted": forecast.predicted, **asdict(forecast), "ratio": forecast.ratio}
        extras["time"]["calibration_age_seconds"] = age
    return extras


def _markdown(rows: "dict[str, Quantity]", title: str) -> list[str]:
    from qkv.cost import CONVENTION, format_formula
    from qkv.cost.formula_range import format_holds

    lines = [f"**{title}**", "", "| quantity | formula | holds for | value |", "|---|---|---|---|"]
    for name, quantity in rows.items():
        formula = f"`{format_formula(quantity.formula)}`" if quantity.formula is not None else ""
        holds = format_holds(quantity.holds or {})
        lines.append(f"| {name} | {formula} | {holds} | {format_count(quantity.value)} |")
    return [*lines, "", *(f"- {line}" for line in CONVENTION)]


def _latex(rows: "dict[str, Quantity]", title: str) -> list[str]:
    from qkv.cost import format_latex
    from qkv.cost.formula_range import format_holds

    lines = [r"\begin{tabular}{lrlr}", rf" & {_escape(title)} & holds for & value \\", r"\hline"]
    for name, quantity in rows.items():
        formula = f"${format_latex(quantity.formula)}$" if quantity.formula is not None else ""
        holds = _escape(format_holds(quantity.holds or {}))
        lines.append(rf"{_escape(name)} & {formula} & {holds} & {format_count(quantity.value)} \\")
    return [*lines, r"\end{tabular}"]


def _escape(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "_&%#$" else letter for letter in text)
