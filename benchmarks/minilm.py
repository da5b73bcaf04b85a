"""all-MiniLM-L6-v2 in our encoder against `transformers`, on 200 real sentences: equality, speed, and other kinds.

    python -m benchmarks.minilm --result benchmarks/results/minilm_cpu.json
    python -m benchmarks.minilm --device cuda --dtype bfloat16 --result benchmarks/results/minilm_gpu.json

Equality is always measured in float32. Speed is the median ratio of alternating runs over some of the padded batches,
theirs through their fastest implementation (sdpa). Kinds are swapped in without training, and compared with softmax.
On a machine without a package index put the archive, or its folder all-MiniLM-L6-v2, into QKV_CACHE beforehand.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.machine import about
from qkv.data import Tokenizer, pad, read_corpus
from qkv.data.corpora.text import split_sentences
from qkv.interop import load_bert, minilm
from qkv.models import Encoder, mean_pool

SENTENCES, MIN_TOKENS, MAX_TOKENS = 200, 3, 200
BATCH = 16
RUNS = 9
RUN_SECONDS = 0.2
"""Seconds that a run takes at least: a GPU does a pass in a few thousandths, and its host is not always quiet."""
TIMED = 2
"""Batches that are timed, of the thirteen."""
WHOLE = 96
"""Tokens of each row of a batch without padding."""
KINDS = ("softmax", "taylor", "taylor(order=4)", "elu", "linear")
RESULTS = Path(__file__).parent / "results" / "minilm_cpu.json"

Batch = tuple[Tensor, Tensor]


def real_sentences() -> list[list[int]]:
    """Sentences of Python's own documentation as ids between [CLS] and [SEP], of lengths spread from 3 to 200."""
    tokenizer = Tokenizer.load(minilm() / "tokenizer.json")
    assert tokenizer.cls is not None
    assert tokenizer.sep is not None
    found = dict.fromkeys(s for document in read_corpus("python")["train"] for s in split_sentences(document))
    rows = [[tokenizer.cls, *tokenizer.encode(text), tokenizer.sep] for text in found]
    fitting = sorted((row for row in rows if MIN_TOKENS <= len(row) <= MAX_TOKENS), key=len)
    chosen = []
    for number in range(SENTENCES):
        target = MIN_TOKENS + (MAX_TOKENS - MIN_TOKENS) * number / (SENTENCES - 1)
        chosen.append(fitting.pop(min(range(len(fitting)), key=lambda index: abs(len(fitting[index]) - target))))
    return chosen


def batches(rows: list[list[int]], device: str = "cpu") -> list[Batch]:
    """Rows of all lengths together, padded at their end; every batch has long and short ones."""
    spread = [rows[start :: -(-len(rows) // BATCH)] for start in range(-(-len(rows) // BATCH))]
    found = []
    for group in spread:
        tokens, mask = pad(group)
        found.append((tokens.to(device), mask.to(device)))
    return found


def their_model() -> Any:
    """The peer."""
    from transformers import BertModel  # noqa: PLC0415

    return BertModel.from_pretrained(minilm(), attn_implementation="sdpa").eval()


@torch.no_grad()
def equality(ours: Encoder, theirs: Any, given: list[Batch]) -> dict[str, float]:
    """The largest difference of any hidden state of a real token, and the smallest cosine of two embeddings."""
    worst, closest = 0.0, 1.0
    for tokens, mask in given:
        states = theirs(tokens, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for a, b in zip(ours.hidden_states(tokens, mask=mask), states, strict=True):
            worst = max(worst, float((a - b)[mask].abs().max()))
        a, b = (mean_pool(x, mask).double() for x in (ours.encode(tokens, mask=mask), states[-1]))
        closest = min(closest, float(functional.cosine_similarity(a, b, dim=1).min()))
    return {"largest_difference": worst, "smallest_cosine": closest}


@torch.no_grad()
def speed(ours: Callable[..., Any], theirs: Callable[..., Any], given: list[Batch]) -> dict[str, Any]:
    """Seconds of a pass in each of `RUNS` alternating runs; ratio: their time / ours, above 1 where we are faster."""
    calls = {
        "qkv": lambda tokens, mask: ours(tokens, None, mask),
        "transformers": lambda tokens, mask: theirs(tokens, attention_mask=mask),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(2):
        warm = max(_seconds(call, given, 1) for call in calls.values())
    passes = max(1, round(RUN_SECONDS / warm))
    for run in range(RUNS):
        for name in sorted(calls, reverse=bool(run % 2)):
            seconds[name].append(_seconds(calls[name], given, passes) / passes)
    ratios = [b / a for a, b in zip(seconds["qkv"], seconds["transformers"], strict=True)]
    return {"ratio": statistics.median(ratios), "ratios": ratios, "passes_a_run": passes, "seconds": seconds}


def _seconds(call: Callable[..., Any], given: list[Batch], passes: int) -> float:
    began = time.perf_counter()
    for _ in range(passes):
        for tokens, mask in given:
            call(tokens, mask)
    if given[0][0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


@torch.no_grad()
def swapped(given: list[Batch]) -> list[dict[str, Any]]:
    """Measure how near sentence embeddings stay to those of softmax when another kind replaces it, untrained."""
    exact = torch.cat([embed(load_bert(minilm()), batch) for batch in given])
    rows = []
    for kind in KINDS:
        vectors = torch.cat([embed(load_bert(minilm(), attention=kind), batch) for batch in given])
        near = functional.cosine_similarity(vectors, exact, dim=1)
        same = float((_nearest(vectors) == _nearest(exact)).double().mean())
        low, worst = float(near.quantile(0.05)), float(near.min())
        rows.append({"kind": kind, "mean": float(near.mean()), "low": low, "worst": worst, "same_nearest": same})
    return rows


def embed(model: Encoder, batch: Batch) -> Tensor:
    """The mean of the tokens' vectors, in float64."""
    return mean_pool(model.encode(batch[0], mask=batch[1]), batch[1]).double()


def table(rows: list[dict[str, Any]]) -> str:
    """As it stands in docs/huggingface.md."""
    lines = ["| kind | mean cosine | 5 % are below | same nearest sentence |", "|---|---|---|---|"]
    lines += [
        f"| {row['kind']} | {row['mean']:.3f} | {row['low']:.3f} | {100 * row['same_nearest']:.0f} % |" for row in rows
    ]
    return "\n".join(lines)


def _nearest(vectors: Tensor) -> Tensor:
    unit = functional.normalize(vectors, dim=1)
    return (unit @ unit.T).fill_diagonal_(-1).argmax(1)


def measure(part: str, rows: list[list[int]], device: str, dtype: torch.dtype) -> dict[str, Any]:
    """One part of the record."""
    given = batches(rows, device)
    if part == "swapped":
        return {"rows": swapped(given)}
    ours, theirs = load_bert(minilm()).to(device), their_model().to(device)
    if part == "equality":
        return {"lengths": [min(map(len, rows)), max(map(len, rows))], **equality(ours, theirs, given)}
    ours, theirs = ours.to(dtype), theirs.to(dtype)
    longest = [row[:WHOLE] for row in rows if len(row) >= WHOLE][:BATCH]
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "batch": BATCH,
        "padded": {"batches": TIMED, **speed(ours, theirs, given[:TIMED])},
        "without_padding": {"length": WHOLE, **speed(ours, theirs, batches(longest, device))},
    }


def main() -> None:
    """Measure, print and write; parts that are not measured anew stay as they were."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of speed")
    parser.add_argument("--parts", default="equality,speed,swapped")
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    record = json.loads(given.result.read_text()) if given.result.exists() else {"format": 1}
    rows = real_sentences()
    for part in given.parts.split(","):
        command = f"python -m benchmarks.minilm --device {given.device} --dtype {given.dtype} --parts {part}"
        found = measure(part, rows, given.device, getattr(torch, given.dtype))
        record[part] = {**about(), "command": command, "sentences": len(rows), **found}
        print(part, json.dumps(found))
        given.result.parent.mkdir(parents=True, exist_ok=True)
        given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
