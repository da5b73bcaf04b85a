"""Other operation counters and ours on the same 31 modules: benchmarks/results/cost_peers.json.

    python -m benchmarks.cost_peers            with an interpreter that has the peers: pip install --no-deps
                                               torchinfo fvcore ptflops calflops ultralytics-thop torchprofile ...

A peer that is not installed is skipped, with a null version. `thop` and `ultralytics-thop` share one module name: the
former is imported from runs/peers_thop (pip install --target). Each module is counted in a separate process, since
some peers leave patches behind when they fail.
"""

import importlib.metadata
import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cost_cases import CASES, Case
from benchmarks.machine import about
from qkv.cost import count_multiplications

RESULTS = Path(__file__).parent / "results" / "cost_peers.json"
THOP = Path(__file__).parent.parent / "runs" / "peers_thop"
Counts = tuple[float, int | None]
"""Multiplications (or multiply-accumulates), and parameters if the peer counts them."""


class Bound(nn.Module):
    """A module that holds its inputs: some peers pass only one and divide by its first size."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...]):
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, _: Tensor) -> Any:
        """Return model(inputs...)."""
        return self.model(*self.inputs)


def _ours(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    with count_multiplications() as counted:
        model(*inputs)
    return counted.total, sum(p.numel() for p in model.parameters())


def _torchinfo(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    found = import_module("torchinfo").summary(
        model, input_data=inputs, verbose=0, mode="train" if model.training else "eval"
    )
    return found.total_mult_adds, found.total_params


def _fvcore(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    fvcore = import_module("fvcore.nn")
    analysis = fvcore.FlopCountAnalysis(model, inputs)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return analysis.total(), fvcore.parameter_count(model)[""]


def _ptflops(backend: str) -> Callable[[nn.Module, tuple[Tensor, ...]], Counts]:
    def count(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
        macs, parameters = import_module("ptflops").get_model_complexity_info(
            Bound(model, inputs),
            (1,),
            input_constructor=lambda _: torch.zeros(1, 1),
            as_strings=False,
            print_per_layer_stat=False,
            verbose=False,
            backend=backend,
        )
        if macs is None:
            raise RuntimeError("ptflops gives no count")
        return macs, parameters

    return count


def _calflops(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    _, macs, parameters = import_module("calflops").calculate_flops(
        model, args=list(inputs), output_as_string=False, print_results=False, print_detailed=False
    )
    return macs, parameters


def _thop(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    macs, parameters = import_module("thop").profile(model, inputs=inputs, verbose=False)
    return macs, int(parameters)


def _old_thop(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    sys.path.insert(0, str(THOP))
    return _thop(model, inputs)


def _torchprofile(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    return import_module("torchprofile").profile_macs(model, args=inputs), None


def _flop_counter(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    with FlopCounterMode(display=False) as flops:
        model(*inputs)
    return flops.get_total_flops() / 2, None


def _profiler(model: nn.Module, inputs: tuple[Tensor, ...]) -> Counts:
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as found:
        model(*inputs)
    return sum(event.flops for event in found.key_averages()) / 2, None


PEERS: dict[str, tuple[str, Callable[[nn.Module, tuple[Tensor, ...]], Counts]]] = {
    "qkv": ("qkv", _ours),
    "torchinfo": ("torchinfo", _torchinfo),
    "fvcore": ("fvcore", _fvcore),
    "ptflops pytorch": ("ptflops", _ptflops("pytorch")),
    "ptflops aten": ("ptflops", _ptflops("aten")),
    "calflops": ("calflops", _calflops),
    "thop": ("thop", _old_thop),
    "ultralytics-thop": ("ultralytics-thop", _thop),
    "torchprofile": ("torchprofile", _torchprofile),
    "FlopCounterMode": ("torch", _flop_counter),
    "torch.profiler": ("torch", _profiler),
}


def main() -> None:
    """Run every installed peer on every module (or on those named, keeping the other rows); write and print."""
    versions = {name: _version(package) for name, (package, _) in PEERS.items()}
    installed = [name for name, version in versions.items() if version is not None]
    named, rows = sys.argv[1:], []
    before = {row["case"]: row for row in json.loads(RESULTS.read_text())["rows"]} if named else {}
    for case in CASES:
        if named and case.name not in named:
            rows.append(before[case.name])
            continue
        elementwise = _elementwise(case)
        found = {name: _judge(case, _count_in_process(case, name), elementwise) for name in installed}
        rows.append({"case": case.name, "parameters": case.parameters, "multiplications": case.multiplications} | found)
        print(case.name, {name: verdict["verdict"] for name, verdict in found.items()}, flush=True)
    result = {
        **about(),
        "command": "python -m benchmarks.cost_peers",
        "peers": versions,
        "verdicts": VERDICTS,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


VERDICTS = {
    "exact": "equal to the hand count to the last digit",
    "convention": "more than the hand count, by no more than elementwise operations and biases: those are counted too",
    "zero": "0 for real work, without a word",
    "wrong": "anything else",
    "crash": "no number",
}


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table of modules by peers."""
    names = [name for name, version in result["peers"].items() if version is not None]
    lines = [f"| module | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row['case']} | {' | '.join(_cell(row[name]) for name in names)} |" for row in result["rows"]]
    for verdict in VERDICTS:
        counts = [sum(row[name]["verdict"] == verdict for row in result["rows"]) for name in names]
        lines.append(f"| **{verdict}** | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    if found["verdict"] in ("wrong", "convention") and found["error"] is not None:
        return f"{found['verdict']} {found['error']:+.2%}"
    return f"**{found['verdict']}**" if found["verdict"] in ("zero", "crash") else str(found["verdict"])


def _version(package: str) -> str | None:
    if package == "thop":
        folders = list(THOP.glob("thop-*.dist-info")) if THOP.is_dir() else []
        return folders[0].name.removeprefix("thop-").removesuffix(".dist-info") if folders else None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _elementwise(case: Case) -> int:
    """Return our elementwise operations of this module, plus one addition per result of a product (biases).

    Another convention can add no more than this. On meta nothing is fused, so nothing is hidden.
    """
    model = case.build().to("meta").train(case.training)
    with count_multiplications(strict=False, trace=True) as counted, torch.no_grad():
        model(*(x.to("meta") for x in case.inputs()))
    return sum(counted.by_op_class.values()) + sum(op.elements for op in counted.trace or () if op.multiplications)


def _judge(case: Case, counted: Counts | str, elementwise: int) -> dict[str, Any]:
    if isinstance(counted, str):
        return {"verdict": "crash", "value": None, "error": None, "why": counted}
    value, truth = counted[0], case.multiplications
    parameters = counted[1] in (None, case.parameters)
    error = (value - truth) / truth if truth else None
    if value == truth:
        verdict = "exact"
    elif value == 0:
        verdict = "zero"
    else:
        verdict = "convention" if 0 < value - truth <= elementwise else "wrong"
    return {"verdict": verdict, "value": value, "error": error, "parameters_right": parameters}


def _count_in_process(case: Case, peer: str, limit: float = 180.0) -> Counts | str:
    """Count in a separate process; return a text if it fails."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_count, args=(case, peer, sender))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(limit) else f"no answer in {limit:.0f} s"
    except EOFError:
        found = "the process died"
    if process.is_alive():
        process.terminate()
    process.join()
    return found


def _count(case: Case, peer: str, sender: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model: Any = case.build().train(case.training)
        if hasattr(model, "config"):
            model.config.use_cache = False  # a cache in the result is not a tensor
        with torch.set_grad_enabled(case.training):
            counts = PEERS[peer][1](model, case.inputs())
        sender.send((float(counts[0]), None if counts[1] is None else int(counts[1])))
    except BaseException:  # noqa: BLE001 - any failure of a peer is a result
        sender.send(traceback.format_exc().strip().splitlines()[-1][:200])


if __name__ == "__main__":
    main()
