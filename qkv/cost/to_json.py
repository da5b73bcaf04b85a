"""A cost report as JSON data with stable keys."""

import platform
from dataclasses import asdict
from typing import Any

import torch

from qkv.cost.polynomial import format_formula
from qkv.cost.report import CONVENTION, CostReport, Quantity


def to_record(report: CostReport) -> dict[str, Any]:
    """Return the report; `multiplications` has the needed ones, and the executed ones under its key `executed`."""
    needed = {"terms": {}} | _quantity(report.needed)
    return {
        "name": report.name,
        "inputs": [str(given) for given in report.call.inputs],
        "convention": list(CONVENTION),
        "symbols": report.sizes,
        "parameters": {"terms": {}} | _quantity(report.parameters),
        "multiplications": needed | {"executed": _quantity(report.executed)},
        "flops": {"needed": 2 * (report.needed.value or 0), "executed": 2 * (report.executed.value or 0)},
        "ledgers": report.by_op_class,
        "backward": report.backward,
        "memory": {
            "weights": asdict(report.weights),
            **{name: _quantity(quantity) for name, quantity in report.memory.items()},
            "cache_by_type": {name: _quantity(quantity) for name, quantity in report.cache_by_dtype.items()},
        },
        "modules": report.modules,
        "roads": {name: _quantity(method) for name, method in report.methods.items()},
        "agree": report.agree,
        "unknown": report.unknown,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _quantity(quantity: Quantity) -> dict[str, Any]:
    formula = None if quantity.formula is None else format_formula(quantity.formula)
    record: dict[str, Any] = {"formula": formula, "value": quantity.value}
    if quantity.holds:
        record["holds"] = quantity.holds
    if quantity.terms:
        record["terms"] = {name: _quantity(term) for name, term in quantity.terms.items()}
    return record
