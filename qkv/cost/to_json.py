"""A cost report as JSON data with stable keys."""

import platform
from dataclasses import asdict
from typing import Any

import torch

from qkv.cost.polynomial import format_formula
from qkv.cost.report import CONVENTION, CostReport, Quantity


def to_record(report: CostReport) -> dict[str, Any]:
    """Return the report; `multiplications` has the needed ones, and the executed ones under its key `executed`."""
    needed = {"terms": {}} | quantity_to_record(report.needed)
    return {
        "name": report.name,
        "inputs": [str(given) for given in report.call.inputs],
        "convention": list(CONVENTION),
        "symbols": report.sizes,
        "parameters": {"terms": {}} | quantity_to_record(report.parameters),
        "multiplications": needed | {"executed": quantity_to_record(report.executed)},
        "flops": {"needed": 2 * (report.needed.value or 0), "executed": 2 * (report.executed.value or 0)},
        "elementwise": report.by_op_class,
        "backward": report.backward,
        "memory": {
            "weights": asdict(report.weights),
            **{name: quantity_to_record(quantity) for name, quantity in report.memory.items()},
            "cache_by_type": {name: quantity_to_record(quantity) for name, quantity in report.cache_by_dtype.items()},
        },
        "modules": report.modules,
        "methods": {name: quantity_to_record(method) for name, method in report.methods.items()},
        "agree": report.agree,
        "unknown": report.unknown,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def quantity_to_record(quantity: Quantity) -> dict[str, Any]:
    """Return formula, value and `holds`: size name -> [first, last], {} for all sizes, None without a formula."""
    record: dict[str, Any] = {
        "formula": None if quantity.formula is None else format_formula(quantity.formula),
        "value": quantity.value,
        "holds": None if quantity.holds is None else {name: list(span) for name, span in quantity.holds.items()},
    }
    if quantity.note:
        record["note"] = quantity.note
    if quantity.terms:
        record["terms"] = {name: quantity_to_record(term) for name, term in quantity.terms.items()}
    return record
