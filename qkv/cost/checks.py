"""Compare the methods of a report with each other and with torch's own counter, module by module."""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.cost.meta_run import count_forward, module_mode, unfused_layers
from qkv.cost.report import CostReport

UNSEEN_BY_TORCH = frozenset({"einsum", "mv", "addmv", "dot", "vdot", "addr", "mkldnn_rnn_layer"})
"""Operations that torch's own counter ignores: outer products of an einsum, products with a vector."""


@dataclass(frozen=True)
class Check:
    """Multiplications of one module, counted by each method; None if a method gives no result."""

    part: str
    declared: int | None
    derived: int | None
    counted: int
    torch: int | None
    unseen: int
    """Multiplications in operations that torch's counter ignores."""

    @property
    def ok(self) -> bool:
        """Whether all methods with a result agree."""
        ours = all(value in (None, self.counted) for value in (self.declared, self.derived))
        return ours and self.torch in (None, self.counted - self.unseen)


def verify(report: CostReport) -> list[Check]:
    """Return a check of the total and of each module that multiplies."""
    with module_mode(report.call.module, training=False):
        counting = count_forward(report.call, report.sizes)
    unseen = sum(n for name, n in counting.by_operation.items() if name in UNSEEN_BY_TORCH)
    by_torch = _torch_counts(report)
    methods = report.methods
    total = Check(
        "the whole",
        methods["declared"].value,
        methods["derived"].value,
        counting.total,
        None if by_torch is None else by_torch[""],
        unseen,
    )
    own_counts = {} if unseen or by_torch is None else _exclusive(by_torch, counting.by_module)
    declared = _by_module(report, counting.by_module)
    return [
        total,
        *(
            Check(path or "(itself)", declared.get(path), None, count, own_counts.get(path), 0)
            for path, count in _merge_layers(counting.by_module).items()
        ),
    ]


def _torch_counts(report: CostReport) -> Counter[str] | None:
    """Return path -> multiplications of a module and its submodules, "" for all; None if it cannot run on meta."""
    if report.call.real_weights:
        return None
    call, root = report.call, type(report.call.module).__name__
    flops = FlopCounterMode(display=False)
    with torch.no_grad(), unfused_layers(), module_mode(call.module, training=False), flops:
        call.run(*call.make_arguments(report.sizes))
    found: Counter[str] = Counter()
    for name, counts in flops.get_flop_counts().items():
        path = "" if name == "Global" else name.removeprefix(root).removeprefix(".")
        if name == "Global" or path:
            found[path] += sum(counts.values()) // 2
    return found


def _exclusive(inclusive: Counter[str], paths: Iterable[str]) -> dict[str, int]:
    """Return what each module runs itself, without submodules, merged over the layers of a stack."""
    own = Counter(inclusive)
    for path in inclusive:
        if path:
            own[_nearest(path.rpartition(".")[0], inclusive)] -= inclusive[path]
    merged = _merge_layers(own)
    return {path: merged.get(path, 0) for path in _merge_layers(dict.fromkeys(paths, 1))}


def _merge_layers(by_module: dict[str, int]) -> dict[str, int]:
    """Add up the layers of a stack: blocks.0.attention and blocks.1.attention become blocks.attention."""
    total: Counter[str] = Counter()
    for path, count in by_module.items():
        total[_without_indices(path)] += count
    return {path: count for path, count in total.items() if count}


def _without_indices(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit()) or path


def _by_module(report: CostReport, by_module: dict[str, int]) -> dict[str, int]:
    """Return declared multiplications by module: the one a term is named after, or its nearest parent."""
    if report.methods["declared"].value is None:
        return {}
    paths = set(_merge_layers(by_module))
    total: Counter[str] = Counter()
    for term, quantity in report.executed.terms.items():
        total[_nearest(_without_indices(term.rpartition(".")[0]), paths)] += quantity.value or 0
    return dict(total)


def _nearest(path: str, paths: Container[str]) -> str:
    """Return the path or its nearest parent in `paths`; a ModuleList is never called itself."""
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path
