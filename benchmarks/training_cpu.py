"""Training speed on a CPU versus the same net from `torch.nn.Transformer`: `python -m benchmarks.training_cpu`.

Both see CMUdict in batches of 256. The peer runs twice: on our batches, bucketed by length, and on
batches in random order, as a plain loop has them. Writes benchmarks/results/training_cpu.json.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.machine import about
from qkv.data import Buckets, Vocabulary, cmudict
from qkv.models import EncoderDecoder, EncoderDecoderConfig
from qkv.positions import Sinusoidal
from qkv.tasks.seq2seq import Seq2SeqData, collate, encode
from qkv.train.objective import Tensors

RESULTS = Path(__file__).parent / "results" / "training_cpu.json"
SIZES = {"dim": 128, "heads": 4, "hidden_dim": 256, "encoder_layers": 2, "decoder_layers": 1, "dropout": 0.1}
BATCH, ROUNDS, STEPS = 256, 12, 4


class Peer(nn.Module):
    """The same net from torch's own parts."""

    def __init__(self, sources: int, targets: int):
        super().__init__()
        dim = int(SIZES["dim"])
        self.read, self.write = nn.Embedding(sources, dim, padding_idx=0), nn.Embedding(targets, dim, padding_idx=0)
        self.positions, self.dropout = Sinusoidal(dim), nn.Dropout(SIZES["dropout"])
        layers = int(SIZES["encoder_layers"]), int(SIZES["decoder_layers"]), int(SIZES["hidden_dim"])
        self.net = nn.Transformer(
            dim, int(SIZES["heads"]), *layers, SIZES["dropout"], "gelu", batch_first=True, norm_first=True
        )
        self.predict = nn.Linear(dim, targets)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Logits after each target token."""
        read, write = (self.dropout(self._embed(t, x)) for t, x in ((self.read, source), (self.write, target)))
        ahead = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        options = {"src_key_padding_mask": ~mask, "memory_key_padding_mask": ~mask, "tgt_is_causal": True}
        return self.predict(self.net(read, write, tgt_mask=ahead, **options))

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        return self.positions(table(tokens) * table.embedding_dim**0.5, torch.arange(tokens.shape[1]))


def stepper(model: nn.Module, batches: Iterator[Tensors]) -> Callable[[], tuple[int, float]]:
    """A function that takes STEPS updates and says how many words and seconds they took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> tuple[int, float]:
        words, started = 0, time.perf_counter()
        for _ in range(STEPS):
            source, mask, given, wanted = next(batches)
            logits = model(source, given, mask).flatten(0, 1)
            functional.cross_entropy(logits, wanted.flatten(), ignore_index=Vocabulary.PAD).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            words += len(source)
        return words, time.perf_counter() - started

    return run


def main() -> None:
    """Time the three in turns, so that a busy moment hits all alike; medians of the rates."""
    strings = Seq2SeqData.build(cmudict())
    examples = encode(strings, strings.splits["train"])
    buckets = Buckets([(len(s), len(t)) for s, t in examples], BATCH, seed=0)

    def bucketed() -> Iterator[Tensors]:
        return (collate([examples[n] for n in buckets.batch(*buckets.locate(step))]) for step in range(10**9))

    def shuffled() -> Iterator[Tensors]:
        draw = random.Random(0)
        return iter(lambda: collate(draw.sample(examples, BATCH)), None)

    sizes = len(strings.sources), len(strings.targets)
    ours = EncoderDecoder(EncoderDecoderConfig(**SIZES), *sizes)  # type: ignore[arg-type]
    runs = {
        "qkv": stepper(ours, bucketed()),
        "nn.Transformer, bucketed": stepper(Peer(*sizes), bucketed()),
        "nn.Transformer, in random order": stepper(Peer(*sizes), shuffled()),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            words, seconds = run()
            rates[name] += [words / seconds] if number else []
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratios = {name: medians["qkv"] / rate for name, rate in medians.items()}
    result = {**about(), "command": "python -m benchmarks.training_cpu", "sizes": SIZES, "batch": BATCH}
    RESULTS.write_text(json.dumps({**result, "words_per_second": medians, "qkv_is_faster_by": ratios}, indent=1) + "\n")
    print(json.dumps({"words_per_second": medians, "qkv_is_faster_by": ratios}, indent=1))


def table(result: dict[str, Any]) -> str:
    """The result file as Markdown."""
    lines = ["| | words per second | speedup of qkv |", "|---|---|---|"]
    for name, rate in result["words_per_second"].items():
        lines.append(f"| {name} | {rate:,.0f} | {result['qkv_is_faster_by'][name]:.2f}x |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
