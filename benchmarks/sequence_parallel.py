"""Sequence parallel: how far split attention is from one process, and the bytes that processes exchange.

    python -m benchmarks.sequence_parallel --out benchmarks/results/sequence_parallel_cpu.json

Processes are connected by gloo. Differences are those of outputs and of the gradients of all inputs, relative to the
largest value, in float64. Bytes are those that one process receives in one forward of one layer in float32: counted in
the calls of torch.distributed, and by `exchanged_bytes`.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.machine import about
from qkv.attention import SequenceGroup, SequenceParallel, parse
from qkv.cost import Shape

RESULTS = Path(__file__).parent / "results" / "sequence_parallel_cpu.json"
KINDS = ("softmax", "softmax(window=64)", "additive", "linear", "elu", "taylor", "delta")
PROCESSES = (2, 4)
SIZES = {"batch": 1, "heads": 4, "key_dim": 16, "value_dim": 64}
LENGTHS = (64, 256, 1024, 4096)
"""Tokens of the whole sequence."""
CHECKED = 203
"""Tokens of the sequences that are compared: the parts have different lengths."""
SHARES = (2.0, 3.0, 0.2, 1.5)
STRONGEST = 50.0
"""Largest rate per token."""


def main() -> None:
    """Compare, count, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.sequence_parallel", *sys.argv[1:]])
    result: dict[str, Any] = {**about(), "command": command, "sizes": SIZES, "tokens compared": CHECKED}
    for processes in PROCESSES:
        with tempfile.TemporaryDirectory() as folder:
            found = launch(_work, processes, Path(folder))
        pairs = {kind: [one["differences"][kind] for one in found] for kind in KINDS}
        result[f"{processes} processes"] = {
            "largest difference": {kind: max(values) for kind, values in pairs.items()},
            "bytes": {kind: _agreed([one["bytes"][kind] for one in found]) for kind in KINDS},
        }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """Return bytes and differences of 4 processes, for docs/sequence_parallel.md."""
    found, two = result["4 processes"], result["2 processes"]
    shown = [str(length) for length in LENGTHS]
    lines = [f"| kind | {' | '.join(f'{length:,} tokens' for length in LENGTHS)} | largest difference |"]
    lines.append("|---" * (len(shown) + 2) + "|")
    for kind in KINDS:
        cells = " | ".join(f"{found['bytes'][kind][length]['counted']:,}" for length in shown)
        largest = max(x["largest difference"][kind] for x in (found, two))
        lines.append(f"| `{kind}` | {cells} | {largest:.1e} |")
    return "\n".join(lines)


def launch(work: Callable[..., Any], processes: int, folder: Path, *given: object) -> list[Any]:
    """Return the results of work(*given) in each of several connected processes, by rank; they must be JSON."""
    spawn(_run, args=(processes, str(folder), work, given), nprocs=processes)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@contextmanager
def received_bytes() -> Iterator[list[int]]:
    """Yield the list of the bytes that this process receives from others, one entry per collective call."""
    counts: list[int] = []
    gather, exchange = dist.all_gather_single, dist.all_to_all_single

    def all_gather(received: Tensor, sent: Tensor, **options: Any) -> Any:
        counts.append(received.nbytes - sent.nbytes)
        return gather(received, sent, **options)

    def all_to_all(received: Tensor, sent: Tensor, from_each: list[int], to_each: list[int], **options: Any) -> Any:
        counts.append(received.element_size() * (sum(from_each) - from_each[dist.get_rank()]))
        return exchange(received, sent, from_each, to_each, **options)

    with patch.object(dist, "all_gather_single", all_gather), patch.object(dist, "all_to_all_single", all_to_all):
        yield counts


def _run(rank: int, processes: int, folder: str, work: Callable[..., Any], given: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    try:
        found = work(*given)
    finally:
        dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def _work() -> dict[str, Any]:
    group = SequenceGroup()
    return {
        "differences": {kind: max(_difference(kind, given, group) for given in (False, True)) for kind in KINDS},
        "bytes": {kind: {str(length): _bytes(kind, length, group) for length in LENGTHS} for kind in KINDS},
    }


def _agreed(found: list[Any]) -> Any:
    """Return what all processes counted."""
    if any(one != found[0] for one in found):
        raise ValueError(f"the processes received different numbers of bytes: {found}")
    return found[0]


def _bytes(kind: str, length: int, group: SequenceGroup) -> dict[str, int]:
    batch, heads, key_dim, value_dim = SIZES.values()
    own = length // group.parts
    q, k = torch.randn(2, batch, heads, own, key_dim)
    v = torch.randn(batch, heads, own, value_dim)
    parallel = SequenceParallel(parse(kind, key_dim=key_dim), group)
    with torch.no_grad(), received_bytes() as counts:
        parallel(q, k, v, causal=True)
    shape = Shape(batch, heads, own, own, key_dim, value_dim, causal=True)
    return {"counted": sum(counts), "formula": parallel.exchanged_bytes(shape)}


def _difference(kind: str, modified: bool, group: SequenceGroup) -> float:
    """Return the largest difference between this part and one process; modified: with all that the kind accepts."""
    torch.manual_seed(7)
    attention = parse(kind, key_dim=SIZES["key_dim"]).double()
    axes = {"q": 2, "k": 2, "v": 2, "decay": 2, "beta": 2, "starts": 1, "mask": 1}
    whole = _inputs(attention.accepts, modified)
    sizes = [int(CHECKED * share / sum(SHARES[: group.parts])) for share in SHARES[: group.parts]]
    sizes[-1] = CHECKED - sum(sizes[:-1])
    start, length = sum(sizes[: group.rank]), sizes[group.rank]
    part = {name: x.detach().narrow(axes[name], start, length).clone() for name, x in whole.items()}
    for x in part.values():
        x.requires_grad_(x.is_floating_point())
    out, found = attention(**whole, causal=True), SequenceParallel(attention, group)(**part, causal=True)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weight).sum().backward()
    (found * weight.narrow(2, start, length)).sum().backward()
    pairs = [(found, out.narrow(2, start, length), out)]
    for name, x in part.items():
        own, all_of_it = x.grad, whole[name].grad
        if own is not None and all_of_it is not None:
            pairs.append((own, all_of_it.narrow(axes[name], start, length), all_of_it))
    with torch.no_grad():
        return max(float((x - y).abs().amax() / scale.abs().amax().clamp(min=1)) for x, y, scale in pairs)


def _inputs(accepts: frozenset[str], modified: bool) -> dict[str, Tensor]:
    batch, heads, key_dim, value_dim = SIZES.values()
    rows = batch, heads, CHECKED
    given = {"q": torch.randn(*rows, key_dim), "k": torch.randn(*rows, key_dim), "v": torch.randn(*rows, value_dim)}
    if modified:
        rates = STRONGEST * torch.rand(*rows, key_dim) ** 6
        given |= {"mask": torch.rand(batch, CHECKED) < 0.8, "starts": torch.rand(batch, CHECKED) < 0.02}
        if "gate" in accepts:
            given["decay"] = rates if "channel_gate" in accepts else rates[..., 0]
        if "beta" in accepts:
            given["beta"] = 2 * torch.rand(rows)
    named = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    return {name: x.requires_grad_(x.is_floating_point()) for name, x in named.items()}


if __name__ == "__main__":
    main()
