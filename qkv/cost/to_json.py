"""A report as plain data with stable keys, for JSON."""

import platform
from dataclasses import asdict
from typing import Any

import torch

from qkv.cost.polynomial import write
from qkv.cost.report import CONVENTION, Quantity, Report


def to_record(report: Report) -> dict[str, Any]:
    """`multiplications` is what is needed; `executed` stands inside it."""
    needed = {"terms": {}} | _quantity(report.needed)
    return {
        "name": report.name,
        "inputs": [str(given) for given in report.play.inputs],
        "convention": list(CONVENTION),
        "symbols": report.sizes,
        "parameters": {"terms": {}} | _quantity(report.parameters),
        "multiplications": needed | {"executed": _quantity(report.executed)},
        "flops": {"needed": 2 * (report.needed.value or 0), "executed": 2 * (report.executed.value or 0)},
        "ledgers": report.ledgers,
        "backward": report.backward,
        "memory": {
            "weights": asdict(report.weights),
            **{name: _quantity(quantity) for name, quantity in report.memory.items()},
            "cache_by_type": {name: _quantity(quantity) for name, quantity in report.cache_by_type.items()},
        },
        "modules": report.modules,
        "roads": {name: _quantity(road) for name, road in report.roads.items()},
        "agree": report.agree,
        "unknown": report.unknown,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _quantity(quantity: Quantity) -> dict[str, Any]:
    formula = None if quantity.formula is None else write(quantity.formula)
    record: dict[str, Any] = {"formula": formula, "value": quantity.value}
    if quantity.holds:
        record["holds"] = quantity.holds
    if quantity.terms:
        record["terms"] = {name: _quantity(term) for name, term in quantity.terms.items()}
    return record
