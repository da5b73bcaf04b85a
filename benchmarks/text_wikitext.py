"""WikiText-2: our decoder with four attention kinds versus a GPT-2 of `transformers`, of equal size, data and steps.

    python -m benchmarks.text_wikitext --prepare build/wikitext            where a package index can be reached
    python -m benchmarks.text_wikitext --text build/wikitext --device cuda --only softmax,transformers --minutes 9

All go through our training loop: the same batches in the same order, the same AdamW, clipping, schedule and bf16
autocast. `transformers` is fed plain rows, its fastest way, in which a text sees the end of the one before it;
`transformers_packed` gets the starts of documents, as ours is. Dropout is where either library has it, at one rate,
but not inside attention. Results are added to those of the result file: contestants can be spread over several calls.
"""

import argparse
import json
import os
import signal
import statistics
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import about
from qkv import runs
from qkv.data import Tokenizer, read_corpus
from qkv.layers import Packing
from qkv.random import derive_seed
from qkv.runs import Config
from qkv.tasks import TextTask
from qkv.train import Compute, Interrupted, Loop, Run, create_run

RESULTS = Path(__file__).parent / "results" / "text_wikitext_gpu.json"
KINDS = ("softmax", "taylor", "elu", "linear")
PEERS = ("transformers", "transformers_packed")
WARM = 20
"""Updates that are not timed."""


class Gpt2(nn.Module):
    """A GPT-2 of `transformers` that is called as our decoder is."""

    def __init__(self, config: Config, tokens: int, *, packed: bool):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - large, and a peer's

        own = config.model
        options: dict[str, Any] = {
            "vocab_size": tokens,
            "n_positions": own["max_length"],
            "n_embd": own["dim"],
            "n_layer": own["layers"],
            "n_head": own["heads"],
            "n_inner": own["hidden_dim"],
            "resid_pdrop": own["dropout"],
            "embd_pdrop": own["dropout"],
            "attn_pdrop": 0.0,
            "use_cache": False,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        self.packed = packed
        self.model = GPT2LMHeadModel(GPT2Config(**options))

    def forward(self, tokens: Tensor, at: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """Return logits; positions that restart make `transformers` keep documents apart."""
        positions = packing.positions if self.packed and packing is not None else None
        hidden = self.model.transformer(tokens, position_ids=positions).last_hidden_state
        return self.model.lm_head(hidden if at is None else hidden[at])


def prepare(folder: Path, size: int) -> None:
    """WikiText-2 as folders of files, one for each article, and a tokenizer: 14 MB that can be taken elsewhere."""
    parts = read_corpus("wikitext")
    for part, documents in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, document in enumerate(documents):
            (folder / part / f"{number:04}.txt").write_text(document)
    Tokenizer.train(parts["train"], "bytes", size).save(folder / "tokenizer.json")


def configure(given: argparse.Namespace, kind: str) -> Config:
    """The preset with the text that was prepared."""
    data = {"source": str(given.text), "tokenizer": str(given.text / "tokenizer.json")}
    train = {"steps": given.steps, **({} if given.batch_size is None else {"batch_size": given.batch_size})}
    model = {"attention": kind, **({} if given.layers is None else {"layers": given.layers})}
    if given.length is not None:
        data["length"] = given.length
    return runs.configure("text", runs.preset("text", "wikitext"), {"model": model, "train": train, "data": data})


def contest(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train one contestant, or go on with it, and judge it on the test part."""
    config = configure(given, name if name in KINDS else "softmax")
    job = TextTask.load(config.data)
    config = replace(config, data=job.options)
    folder = given.out / name
    going = (folder / "config.json").exists()
    run = Run(folder) if going else create_run(folder)
    if not going:
        runs.save_config(run, config, job)
    model = _build(config, job, name)
    loop = Loop(job.objective(model, config.train), config.train, run, Compute(given.device), _say(name))
    if going:
        loop.resume()
    loop.train()
    model.load_state_dict(loop.best)
    updates = [line for line in run.read_metrics() if "tokens" in line]
    timed = [line["tokens"] / line["seconds"] for line in updates[WARM:]] or [0.0]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": loop.progress.step,
        "best_step": loop.progress.best_step,
        "held_out_loss": loop.progress.best,
        "train_loss": statistics.mean(line["loss"] for line in updates[-50:]),
        "tokens_per_second": statistics.median(timed),
        "test": job.evaluate(model, "test"),
    }


def _build(config: Config, job: TextTask, name: str) -> nn.Module:
    if name in KINDS:
        return runs.build(config, job)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.train.seed, "initial weights"))
        return Gpt2(config, *job.sizes(), packed=name == "transformers_packed")


def _say(name: str) -> Any:
    def report(line: dict[str, Any]) -> None:
        if line.get("event") == "validated" or ("loss" in line and line["step"] % 100 == 0):
            print(name, json.dumps(line), flush=True)

    return report


def ratios(records: dict[str, Any]) -> dict[str, Any]:
    """Compare ours with softmax against the peer: word perplexity and tokens per second."""
    found = {}
    for peer in (peer for peer in PEERS if peer in records and "softmax" in records):
        ours, other = records["softmax"], records[peer]
        found[peer] = {
            "word_perplexity": ours["test"]["word_perplexity"] / other["test"]["word_perplexity"],
            "tokens_per_second": ours["tokens_per_second"] / other["tokens_per_second"],
        }
    return found


def table(records: dict[str, Any]) -> str:
    """Markdown: perplexity of each contestant, and speed where nothing ran beside it."""
    lines = ["| | parameters | perplexity per word | per token | tokens per second |", "|---|---|---|---|---|"]
    for name, record in records.items():
        test, speed = record["test"], record["tokens_per_second"]
        cells = [f"{test['word_perplexity']:.1f}", f"{test['perplexity']:.1f}", f"{speed:,.0f}" if speed else ""]
        lines.append(f"| `{name}` | {record['parameters']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """One contestant after the other, until the time is up; what is there already is not done again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, help="Write the text to this folder, and do nothing else.")
    parser.add_argument("--size", type=int, default=16000, help="Tokens of the tokenizer.")
    parser.add_argument("--text", type=Path, default=Path("build/wikitext"))
    parser.add_argument("--only", default=",".join((*KINDS, *PEERS)))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, help="Stop and save after so long.")
    parser.add_argument("--out", type=Path, default=Path("build/text_wikitext"))
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.prepare is not None:
        prepare(given.prepare, given.size)
        return
    if given.minutes is not None:
        timer = threading.Timer(60 * given.minutes, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
    records = json.loads(given.result.read_text())["records"] if given.result.exists() else {}
    for name in (name for name in given.only.split(",") if name not in records):
        try:
            records[name] = contest(given, name)
        except Interrupted:
            print(f"{name} is saved in {given.out / name}; the same command goes on")
            return
        print(name, json.dumps(records[name]), flush=True)
        command = f"python -m benchmarks.text_wikitext --device {given.device} --steps {given.steps}"
        result = {**about(), "command": command, "records": records, "softmax_over_peer": ratios(records)}
        given.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
