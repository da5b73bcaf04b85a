"""Our word vectors versus gensim's, in one run: `python -m benchmarks.word_vectors --gensim runs/gensim/bin/python`.

    python -m venv runs/gensim && runs/gensim/bin/pip install gensim==4.4.0

Both learn WikiText-2 from the same paragraphs with the same settings (100 dimensions, window 5, 5 words of noise by
count^0.75, subsampling 1e-3, words seen 5 times, 5 epochs, rate 0.025 falling in a line), on one thread each, one after
the other, seed by seed. Evaluated by our code on WS-353: center vectors of both. Speed is words of the text per second,
counting vocabularies and reading left out, by the processor's time and by the clock: where others use the machine, the
clock measures the others. Writes benchmarks/results/word_vectors_cpu.json after every seed; seeds that are in it
already are not run again, so the minutes that this takes may be spread.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import about
from qkv import runs, tasks
from qkv.data import Vectors, read_corpus, read_vectors, split_paragraphs, ws353
from qkv.inference import score_similarity
from qkv.train import Loop, create_run

RESULTS = Path(__file__).parent / "results" / "word_vectors_cpu.json"
EPOCHS = 5
OBJECTIVES = ("skip_gram", "cbow")
WHO = ("qkv", "gensim")
CLOCKS = ("processor", "clock")
PEER = """
import json, sys, time
import gensim
from gensim.models import Word2Vec
text, out, skip_gram, seed, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
paragraphs = [line.split() for line in open(text, encoding="utf-8")]
model = Word2Vec(vector_size=100, window=5, min_count=5, negative=5, ns_exponent=0.75, sample=1e-3, sg=skip_gram,
    hs=0, cbow_mean=1, alpha=0.025, min_alpha=0.0001, epochs=epochs, seed=seed, workers=1)
model.build_vocab(paragraphs)
clock, processor = time.perf_counter(), time.process_time()
model.train(paragraphs, total_examples=len(paragraphs), epochs=epochs)
clock, processor = time.perf_counter() - clock, time.process_time() - processor
model.wv.save_word2vec_format(out)
print(json.dumps({"clock": clock, "processor": processor, "version": gensim.__version__}))
"""


def train_ours(job: tasks.WordsTask, objective: str, seed: int, epochs: int) -> tuple[Vectors, dict[str, Any]]:
    """By the loop that all tasks share, validation and checkpoint at the end included."""
    steps = -(-epochs * job.splits["train"].block_count // 10)
    changes: dict[str, dict[str, Any]] = {
        "model": {"objective": objective},
        "train": {"steps": steps, "validate_every": steps, "seed": seed},
    }
    config = runs.configure("words", runs.preset("words", "wikitext"), changes)
    model = runs.build(config, job)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(job.objective(model, config.train), config.train, create_run(Path(folder) / "run"))
        clock, processor = time.perf_counter(), time.process_time()
        loop.train()
        took = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
    return job.vectors(model), took


def train_theirs(python: Path, text: Path, objective: str, seed: int, epochs: int) -> tuple[Vectors, dict[str, Any]]:
    """By gensim, in a process of another environment."""
    out = text.with_name("vectors.txt")
    arguments = [str(text), str(out), str(int(objective == "skip_gram")), str(seed), str(epochs)]
    done = subprocess.run(
        [str(python), "-c", PEER, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    return read_vectors(out), json.loads(done.stdout)


def compare(job: tasks.WordsTask, python: Path, text: Path, objective: str, kept: "Kept") -> None:
    """All seeds of one objective that are missing, ours and theirs in turns."""
    pairs = ws353()
    for seed in kept.missing(objective):
        load = os.getloadavg()[0]
        found = {
            "qkv": train_ours(job, objective, seed, kept.epochs),
            "gensim": train_theirs(python, text, objective, seed, kept.epochs),
        }
        for name, (vectors, took) in found.items():
            alike = score_similarity(vectors, pairs)
            rates = {f"words_per_{which}_second": kept.epochs * kept.words / took[which] for which in CLOCKS}
            row = {"seed": seed, "spearman": alike.spearman, "pairs": alike.pairs, **rates, "load_at_start": load}
            kept.add(objective, name, row)
        kept.write()


class Kept:
    """The result file, as far as it has come."""

    def __init__(self, path: Path, words: int, epochs: int, seeds: int):
        self.path, self.words, self.epochs, self.seeds = path, words, epochs, seeds
        self.rows: dict[str, dict[str, list[dict[str, float]]]] = {}
        record = json.loads(path.read_text()) if path.exists() else {}
        if (record.get("words"), record.get("epochs")) == (words, epochs):
            there = [objective for objective in OBJECTIVES if objective in record]
            self.rows = {objective: {who: record[objective][who] for who in WHO} for objective in there}

    def missing(self, objective: str) -> list[int]:
        """Seeds that both have not been through."""
        done = {row["seed"] for row in self.rows.get(objective, {}).get("gensim", [])}
        return [seed for seed in range(1, self.seeds + 1) if seed not in done]

    def add(self, objective: str, name: str, row: dict[str, float]) -> None:
        """One more training."""
        self.rows.setdefault(objective, {"qkv": [], "gensim": []})[name].append(row)

    def write(self) -> None:
        """All that is known, with what follows from it."""
        command = f"python -m benchmarks.word_vectors --gensim runs/gensim/bin/python --seeds {self.seeds}"
        text = {"words": self.words, "epochs": self.epochs, "gensim": "4.4.0"}
        found = {name: {**rows, "summary": summary(rows)} for name, rows in self.rows.items()}
        self.path.write_text(json.dumps({**about(), "command": command, **text, **found}, indent=1) + "\n")


def summary(rows: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Means and spreads of the correlation; the median of the ratios of speed, seed by seed."""
    rho = {name: spread([row["spearman"] for row in found]) for name, found in rows.items()}
    ratios = {
        which: statistics.median(
            ours[f"words_per_{which}_second"] / theirs[f"words_per_{which}_second"]
            for ours, theirs in zip(rows["qkv"], rows["gensim"], strict=True)
        )
        for which in CLOCKS
    }
    return {"spearman": rho, "words_a_second_ours_over_theirs": ratios}


def table(record: dict[str, Any]) -> str:
    """Return the table of a result file for the documents."""
    lines = [
        "| | WS-353 Spearman, qkv | gensim | seeds | words per second, qkv / gensim |",
        "|---|---|---|---|---|",
    ]
    for objective in OBJECTIVES:
        if objective in record:
            found = record[objective]["summary"]
            rho = [f"{found['spearman'][who]['mean']:.3f} ± {found['spearman'][who]['deviation']:.3f}" for who in WHO]
            speed = found["words_a_second_ours_over_theirs"]["processor"]
            lines.append(f"| `{objective}` | {rho[0]} | {rho[1]} | {len(record[objective]['qkv'])} | {speed:.2f} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def main() -> None:
    """Both objectives, and the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gensim", type=Path, required=True, help="A Python that has gensim 4.4.0.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--result", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = tasks.WordsTask.load({"source": "wikitext"})
    paragraphs = list(split_paragraphs(read_corpus("wikitext")["train"]))
    kept = Kept(given.result, sum(map(len, paragraphs)), given.epochs, given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "paragraphs.txt"
        text.write_text("\n".join(map(" ".join, paragraphs)) + "\n", encoding="utf-8")
        for objective in given.objectives.split(","):
            compare(job, given.gensim, text, objective, kept)
    print(table(json.loads(given.result.read_text())))


if __name__ == "__main__":
    main()
