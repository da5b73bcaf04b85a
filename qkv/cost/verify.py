"""Every figure of a report held against the other roads and against torch's own counter, part by part."""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.cost.meta_run import count, mode
from qkv.cost.report import Report

UNSEEN_BY_TORCH = frozenset({"einsum", "mv", "addmv", "dot", "vdot", "addr", "mkldnn_rnn_layer"})
"""Operations that torch's own counter takes for nothing: outer products of an einsum, products with a vector."""


@dataclass(frozen=True)
class Tick:
    """One part, and what each road says of the multiplications that it executes; None: it does not say."""

    part: str
    declared: int | None
    derived: int | None
    counted: int
    torch: int | None
    unseen: int
    """Multiplications in operations that torch's counter is known not to see."""

    @property
    def ok(self) -> bool:
        """Whether all that say anything say the same."""
        ours = all(value in (None, self.counted) for value in (self.declared, self.derived))
        return ours and self.torch in (None, self.counted - self.unseen)


def verify(report: Report) -> list[Tick]:
    """A tick for the whole and for each module that multiplies."""
    with mode(report.play.module, training=False):
        counting = count(report.play, report.sizes)
    unseen = sum(n for name, n in counting.by_operation.items() if name in UNSEEN_BY_TORCH)
    theirs = _torchs_own(report)
    roads = report.roads
    total = Tick(
        "the whole",
        roads["declared"].value,
        roads["derived"].value,
        counting.total,
        None if theirs is None else theirs[""],
        unseen,
    )
    parts = {} if unseen or theirs is None else _exclusive(theirs, counting.by_module)
    declared = _by_module(report, counting.by_module)
    return [
        total,
        *(
            Tick(path or "(itself)", declared.get(path), None, number, parts.get(path), 0)
            for path, number in _folded(counting.by_module).items()
        ),
    ]


def _reason(report: Report) -> str:
    holds = report.roads["counted"].holds
    return holds if holds.startswith("run for real") else ""


def _torchs_own(report: Report) -> Counter[str] | None:
    """Module path -> multiplications in it and in its parts, "" for all; None if it cannot run on meta."""
    if _reason(report):
        return None
    play, root = report.play, type(report.play.module).__name__
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), mode(play.module, training=False), FlopCounterMode(display=False) as flops:
            play.call(*play.stage(report.sizes))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    found: Counter[str] = Counter()
    for name, counts in flops.get_flop_counts().items():
        path = "" if name == "Global" else name.removeprefix(root).removeprefix(".")
        if name == "Global" or path:
            found[path] += sum(counts.values()) // 2
    return found


def _exclusive(inclusive: Counter[str], paths: Iterable[str]) -> dict[str, int]:
    """What each module ran itself, folded like the paths."""
    own = Counter(inclusive)
    for path in inclusive:
        if path:
            own[_nearest(path.rpartition(".")[0], inclusive)] -= inclusive[path]
    folded = _folded(own)
    return {path: folded.get(path, 0) for path in _folded(dict.fromkeys(paths, 1))}


def _folded(by_module: dict[str, int]) -> dict[str, int]:
    """Equal parts of a stack together: blocks.0.attention and blocks.1.attention are blocks.attention."""
    total: Counter[str] = Counter()
    for path, number in by_module.items():
        total[_general(path)] += number
    return {path: number for path, number in total.items() if number}


def _general(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit()) or path


def _by_module(report: Report, by_module: dict[str, int]) -> dict[str, int]:
    """Declared terms by the module that runs them: the one they are named after, or the nearest above it."""
    if report.roads["declared"].value is None:
        return {}
    paths = set(_folded(by_module))
    total: Counter[str] = Counter()
    for term, quantity in report.executed.terms.items():
        total[_nearest(_general(term.rpartition(".")[0]), paths)] += quantity.value or 0
    return dict(total)


def _nearest(path: str, paths: Container[str]) -> str:
    """The path or the next one above it that is there; a list of modules is never called itself."""
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path
