"""Attention on a GPU: the kernels of qkv, flash-linear-attention and torch's SDPA, in one process on the same inputs.

    python -m benchmarks.attention_gpu --peers FOLDER --result benchmarks/results/attention_gpu_h200.json

FOLDER holds flash-linear-attention, unpacked (pip download; it is pure Python). Nothing is timed before every kernel of
qkv is verified: outputs and gradients against float64, and the same bits in 20 runs. Errors of the peer come last.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module, metadata
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import elu, scaled_dot_product_attention
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.machine import about
from qkv.attention import Attention, Elu, Linear, Taylor
from qkv.cost import measure
from qkv.draw import Axis, Series, line_chart

Call = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPES = {
    "X": (8, 16, 8192),
    "Y": (1, 16, 131072),
    "Z": (1, 4, 131072),
    "16k": (1, 16, 16384),
    "32k": (1, 16, 32768),
    "64k": (1, 16, 65536),
}
"""batch, heads, tokens."""
MAX_ERROR = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-6}
"""Relative RMS above which nothing is timed."""


@dataclass(frozen=True)
class Contestant:
    """A function on (batch, heads, time, dim), and the shapes on which it is timed."""

    name: str
    call: Call
    key_dim: int
    law: type[Attention] | None
    """Mechanism whose definition it computes; None: its errors are not measured."""
    shapes: tuple[str, ...]
    backward: tuple[str, ...]
    """Shapes on which it is also timed with its backward; a quadratic one takes too long on the others."""
    value_dim: int = 64


@dataclass(frozen=True)
class Row:
    """One contestant on one shape."""

    name: str
    shape: str
    forward: float
    """Milliseconds, median."""
    both: float | None
    """Milliseconds with the backward."""
    peak_mib: float | None
    """Peak memory of forward and backward in excess of the inputs and the incoming gradient, results included."""


def main() -> None:
    """Verify, time, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peers", type=Path, help="folder with flash-linear-attention (default: no peer)")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--draw", type=Path, help="only draw the result file, as SVG, to this path")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated shapes (default: all)")
    parser.add_argument(
        "--peer-errors", type=Path, help="earlier result file that holds the errors of the peer (default: measure them)"
    )
    parser.add_argument("--wide", action="store_true", help="values, and keys of linear kinds, of 128 columns; shape X")
    given = parser.parse_args()
    if given.draw is not None:
        given.draw.write_text(picture(json.loads(given.result.read_text())))
        return
    if not torch.cuda.is_available():
        sys.exit("attention_gpu: no CUDA device found")
    # every backward in this thread: waking another one is not part of a kernel's time
    torch.autograd.set_multithreading_enabled(False)
    ours, softmax, peers = (_wide if given.wide else _usual)(given.peers)
    errors = _timed("errors", lambda: list(_errors(ours)))
    changed = _timed("bits", lambda: _nondeterministic(ours))
    wrong = [e for e in errors if e["worst"] is None or e["worst"] > MAX_ERROR[getattr(torch, e["dtype"])]]
    wrong += [{"name": name, "bits": "differ between runs"} for name in changed]
    if wrong:
        sys.exit("nothing was timed, because these results are wrong:\n" + "\n".join(map(str, wrong)))
    result = {**about(), "command": shlex.join(["python", "-m", "benchmarks.attention_gpu", *sys.argv[1:]])}
    result |= {"setting": SETTING, "peer": _version(), "triton": metadata.version("triton")}
    result["value_dim"] = ours[0].value_dim
    result |= {"errors": errors, "decode": _timed("decoding", lambda: _decode(ours)), "rows": []}
    for shape in given.shapes.split(","):  # written after each: an interrupted run keeps the others
        result["rows"] += _timed(shape, partial(_times, shape, [*ours, *softmax, *peers]))
        given.result.write_text(json.dumps(result, indent=1) + "\n")
    for peer in peers:  # last: for each type the peer compiles and tunes again, which takes minutes
        result["errors"] += _timed(f"errors of {peer.name}", partial(_errors_of_peer, peer, given.peer_errors))
        given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def _timed(what: str, work: Callable[[], Any]) -> Any:
    """Return the result of `work`, and print how long it took."""
    began = time.perf_counter()
    found = work()
    print(f"{what}: {time.perf_counter() - began:.0f} s", flush=True)
    return found


SETTING = (
    "causal, bfloat16, inputs in the layout (batch, time, heads, dim); milliseconds, median of 5 rounds "
    "that visit every contestant, backward passes in the calling thread; errors are relative RMS against float64, the "
    "worst of output and three gradients"
)


def _usual(folder: Path | None) -> tuple[list[Contestant], list[Contestant], list[Contestant]]:
    """Return the contestants of qkv, of torch and of the peer."""
    everywhere, short = tuple(SHAPES), ("X", "16k", "32k")
    ours = [_own(law, key_dim, everywhere) for law, key_dim in ((Taylor, 16), (Taylor, 64), (Linear, 64), (Elu, 64))]
    softmax = [
        Contestant("SDPA cuDNN", _sdpa(SDPBackend.CUDNN_ATTENTION), 64, None, everywhere, short),
        Contestant("SDPA flash", _sdpa(SDPBackend.FLASH_ATTENTION), 64, None, (*short, "Z"), ("X",)),
        Contestant("SDPA, key_dim 16", _sdpa(None), 16, None, ("X",), ("X",)),
    ]
    return ours, softmax, _peers(folder)


def _wide(folder: Path | None) -> tuple[list[Contestant], list[Contestant], list[Contestant]]:
    """Return the same for values of 128 columns, and keys of linear kinds as well."""
    x = ("X",)
    ours = [_own(law, key_dim, x, 128) for law, key_dim in ((Taylor, 16), (Taylor, 64), (Linear, 128), (Elu, 128))]
    softmax = [Contestant("SDPA cuDNN", _sdpa(SDPBackend.CUDNN_ATTENTION), 128, None, x, x, 128)]
    peers = [
        replace(peer, key_dim=16 if peer.law is Taylor else 128, value_dim=128, shapes=x, backward=x)
        for peer in _peers(folder)
    ]
    return ours, softmax, peers


def _own(law: type[Attention], key_dim: int, shapes: tuple[str, ...], value_dim: int = 64) -> Contestant:
    call = _attend(law(backend="triton"))
    return Contestant(f"qkv {law.kind}, key_dim {key_dim}", call, key_dim, law, shapes, shapes, value_dim)


def _attend(mechanism: Attention) -> Call:
    return lambda q, k, v: mechanism(q, k, v, causal=True)


def _sdpa(backend: SDPBackend | None) -> Call:
    """Return SDPA with this implementation, or with the one that torch chooses."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return call


def _peers(folder: Path | None) -> list[Contestant]:
    """Return those of flash-linear-attention, whose layout is (batch, time, heads, dim)."""
    if folder is None:
        return []
    sys.path.insert(0, str(folder))
    based, linear = import_module("fla.ops.based"), import_module("fla.ops.linear_attn")

    def time_first(function: Callable[..., Any], **options: Any) -> Call:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            found = function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
            out: Tensor = found[0] if isinstance(found, tuple) else found
            return out.transpose(1, 2)

        return call

    def mapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return normalized(elu(q) + 1, elu(k) + 1, v)

    plain = time_first(linear.chunk_linear_attn, normalize=False)
    normalized = time_first(linear.chunk_linear_attn, normalize=True, scale=1.0)
    return [
        Contestant(
            "fla fused_chunk_based", time_first(based.fused_chunk_based), 16, Taylor, ("X", "Y", "Z"), ("X", "Y")
        ),
        Contestant("fla parallel_based", time_first(based.parallel_based), 16, Taylor, ("X",), ("X",)),
        Contestant("fla chunk_linear_attn", plain, 64, Linear, ("X", "Y", "Z"), ("X", "Y", "Z")),
        Contestant("fla the same, normalised", normalized, 64, None, ("X", "Y"), ("X", "Y")),
        Contestant("fla the same, normalised, with elu", mapped, 64, Elu, ("X",), ("X",)),
    ]


def _version() -> str | None:
    try:
        return metadata.version("flash-linear-attention")
    except metadata.PackageNotFoundError:
        return None


def _inputs(of: Contestant, batch: int, heads: int, tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """Return queries, keys, values, and the incoming gradient."""
    random = torch.Generator("cuda").manual_seed(tokens + of.key_dim)
    sizes = (of.key_dim, of.key_dim, of.value_dim, of.value_dim)
    drawn = [torch.randn(batch, tokens, heads, d, generator=random, device="cuda", dtype=dtype) for d in sizes]
    return [x.transpose(1, 2) for x in drawn]


def _errors(contestants: list[Contestant]) -> Iterator[dict[str, Any]]:
    """Yield the relative RMS of the output and of each gradient, 1,000 tokens, against the definition in float64.

    The peer's normalized form of plain q.k is left out: its normalizer can be of any sign, or zero.
    """
    for contestant in contestants:
        if contestant.law is None:
            continue
        law = contestant.law(backend="reference")
        for dtype in MAX_ERROR:
            try:
                found = _error_of(contestant, law, dtype)
            except Exception as error:  # noqa: BLE001 - a peer that fails is a result
                yield {"name": contestant.name, "dtype": str(dtype)[6:], "worst": None, "failed": str(error)}
                continue
            known = [error if isfinite(error) else None for error in found]  # JSON has no NaN
            yield {"name": contestant.name, "dtype": str(dtype)[6:], "worst": _worst(known), "all": known}


def _errors_of_peer(peer: Contestant, earlier: Path | None) -> list[dict[str, Any]]:
    """Return the errors, measured or from an earlier run of the same version on the same inputs."""
    if earlier is None:
        return list(_errors([peer]))
    kept = json.loads(earlier.read_text())
    if kept["peer"] != _version():
        sys.exit(f"{earlier} has errors of version {kept['peer']} of the peer, but version {_version()} is installed")
    return [{**error, "measured": kept["date"]} for error in kept["errors"] if error["name"] == peer.name]


def _worst(errors: list[float | None]) -> float | None:
    """Return the largest; None if one of them is not finite."""
    known = [error for error in errors if error is not None]
    return max(known) if len(known) == len(errors) else None


def _error_of(contestant: Contestant, law: Attention, dtype: torch.dtype) -> list[float]:
    *inputs, g_out = _inputs(contestant, 2, 3, 1000, dtype)
    results = []
    for call, dtype_of in ((contestant.call, dtype), (_attend(law), torch.float64)):
        qkv_inputs = [x.detach().to(dtype_of).requires_grad_() for x in inputs]
        out = call(*qkv_inputs)
        results.append([out.detach(), *torch.autograd.grad(out, qkv_inputs, g_out.to(out.dtype))])
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]


def _nondeterministic(contestants: list[Contestant]) -> list[str]:
    """Return the names of those whose output or gradients differ between 20 runs on the same input."""
    changed = []
    for contestant in contestants:
        *qkv_inputs, g_out = _inputs(contestant, 2, 4, 4099, torch.bfloat16)
        qkv_inputs = [x.detach().requires_grad_() for x in qkv_inputs]
        first: list[Tensor] | None = None
        for _ in range(20):
            out = contestant.call(*qkv_inputs)
            found = [out, *torch.autograd.grad(out, qkv_inputs, g_out)]
            first = first or found
            if not all(torch.equal(a, b) for a, b in zip(first, found, strict=True)):
                changed.append(contestant.name)
                break
    return changed


def _times(shape: str, contestants: list[Contestant]) -> list[dict[str, Any]]:
    """Time all contestants in rounds, so that none has the cool GPU alone."""
    entered = [c for c in contestants if shape in c.shapes]
    wanted = [(c, back) for c in entered for back in (False, True) if not back or shape in c.backward]
    calls = {(c.name, back): _call(c, shape, backward=back) for c, back in wanted}
    taken: dict[tuple[str, bool], list[float]] = {key: [] for key in calls}
    for _ in range(5):
        for key, call in calls.items():
            taken[key].append(_milliseconds(call))
    rows: list[dict[str, Any]] = []
    for c in entered:
        back = taken.get((c.name, True))
        peak = measure(calls[c.name, True], "cuda", 1).peak_bytes / 2**20 if back else None
        row = Row(c.name, shape, _median(taken[c.name, False]), _median(back) if back else None, peak)
        rows.append(asdict(row))
    torch.cuda.empty_cache()
    return rows


def _median(times: list[float]) -> float:
    return round(statistics.median(times), 4)


def _call(contestant: Contestant, shape: str, *, backward: bool) -> Callable[[], object]:
    *qkv_inputs, g_out = _inputs(contestant, *SHAPES[shape], torch.bfloat16)
    if not backward:
        return lambda: contestant.call(*qkv_inputs)
    qkv_inputs = [x.detach().requires_grad_() for x in qkv_inputs]
    return lambda: torch.autograd.grad(contestant.call(*qkv_inputs), qkv_inputs, g_out)


def _milliseconds(call: Callable[[], object]) -> float:
    return float(do_bench(call, warmup=10, rep=40, return_mode="median"))


def _decode(contestants: list[Contestant]) -> dict[str, dict[str, dict[str, float]]]:
    """Return milliseconds per new token for 8 sequences of 16 heads, after 1,024 and after a million tokens.

    Captured in a CUDA graph, which is GPU time; and called from Python, which is mostly host time.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for contestant in contestants:
        steps = {str(past): _step(contestant, past) for past in (1024, 1048576)}
        found[contestant.name] = {"captured": _in_turns(steps, _replayed), "called": _in_turns(steps, _milliseconds)}
    return found


def _replayed(call: Callable[[], object]) -> float:
    return float(do_bench_cudagraph(call, rep=10, return_mode="median"))


@torch.inference_mode()
def _in_turns(steps: dict[str, Callable[[], None]], milliseconds: Callable[[Any], float]) -> dict[str, float]:
    """Return the median of 9 rounds that visit every step."""
    taken: dict[str, list[float]] = {past: [] for past in steps}
    for _ in range(9):
        for past, step in steps.items():
            taken[past].append(milliseconds(step))
    return {past: round(statistics.median(times), 5) for past, times in taken.items()}


@torch.inference_mode()
def _step(contestant: Contestant, past: int) -> Callable[[], None]:
    """Return a function that decodes one more token after `past` tokens."""
    assert contestant.law is not None
    mechanism = contestant.law(backend="triton")
    sizes = contestant.key_dim, contestant.value_dim
    state = mechanism.start(8, 16, *sizes, dtype=torch.bfloat16, device="cuda")
    for start in range(0, past, 65536):
        q, k, v, _ = _inputs(contestant, 8, 16, min(65536, past - start), torch.bfloat16)
        _, state = mechanism.step(q, k, v, state)
    q, k, v, _ = _inputs(contestant, 8, 16, 1, torch.bfloat16)

    def step() -> None:
        nonlocal state
        _, state = mechanism.step(q, k, v, state)

    return step


NOT_DRAWN = ("SDPA flash", "fla chunk_linear_attn", "fla the same, normalised")
"""Rows of the table for which the picture has no room."""


def picture(result: dict[str, Any]) -> str:
    """Return an SVG: milliseconds over tokens, one sequence of 16 heads; a quadratic kind is twice as steep."""
    lengths = {shape: tokens for shape, (batch, heads, tokens) in SHAPES.items() if (batch, heads) == (1, 16)}
    names = [name for name in dict.fromkeys(row["name"] for row in result["rows"]) if name not in NOT_DRAWN]
    lines = {
        name: sorted(
            (lengths[r["shape"]], r["forward"]) for r in result["rows"] if r["name"] == name if r["shape"] in lengths
        )
        for name in names
    }
    series = [Series(name, points, dots=len(points) == 1) for name, points in lines.items() if points]
    gpu = result["machine"]["gpu"]
    title = f"Causal attention, forward, one sequence of 16 heads in bfloat16, {gpu}"
    return line_chart(series, title, Axis("tokens", log=True), Axis("milliseconds", log=True), height=460)


def table(result: dict[str, Any], shapes: Sequence[str] = tuple(SHAPES)) -> str:
    """Return Markdown: milliseconds of every contestant on these shapes, forward and with its backward."""
    shapes = [shape for shape in shapes if any(row["shape"] == shape for row in result["rows"])]
    cells = {(row["name"], row["shape"]): row for row in result["rows"]}
    lines = [f"| | {' | '.join(_title(shape) for shape in shapes)} |", "|---" * (len(shapes) + 1) + "|"]
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        found = [cells.get((name, shape)) for shape in shapes]
        lines.append(f"| {name} | {' | '.join(_cell(row) for row in found)} |")
    return "\n".join(lines)


def error_table(result: dict[str, Any]) -> str:
    """Return Markdown: the worst relative RMS of each contestant in each type."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in MAX_ERROR]
    worst = {(error["name"], error["dtype"]): error["worst"] for error in result["errors"]}
    lines = [f"| | {' | '.join(dtypes)} |", "|---" * (len(dtypes) + 1) + "|"]
    for name in dict.fromkeys(error["name"] for error in result["errors"]):
        lines.append(f"| {name} | {' | '.join(_error_cell(worst[name, dtype]) for dtype in dtypes)} |")
    return "\n".join(lines)


def _error_cell(worst: float | None) -> str:
    return "not finite" if worst is None else f"{worst:.1e}"


def decode_table(result: dict[str, Any]) -> str:
    """Return Markdown: microseconds per new token after a short and after a long past."""
    columns = [(way, past) for way in ("captured", "called") for past in ("1024", "1048576")]
    lines = [f"| | {' | '.join(f'{way}, after {int(past):,}' for way, past in columns)} |", "|---" * 5 + "|"]
    for name, taken in result["decode"].items():
        lines.append(f"| {name} | {' | '.join(f'{1000 * taken[way][past]:.1f}' for way, past in columns)} |")
    return "\n".join(lines)


def _title(shape: str) -> str:
    batch, heads, tokens = SHAPES[shape]
    return f"{batch} x {heads} heads x {tokens:,} tokens"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['forward']:.2f}" + (f" / {row['both']:.2f}" if row["both"] else "")


if __name__ == "__main__":
    main()
