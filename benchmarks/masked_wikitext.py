"""BERT's pretraining on WikiText-2: `python -m benchmarks.masked_wikitext --device cuda`.

Preset `wikitext` of the task masked: held-out accuracy on masked tokens, against the best constant guess, and on next
sentences, at the end and while training. If interrupted, the same command resumes the run in --run. Writes
benchmarks/results/masked_wikitext.json.

Where there is no package index, take the text along: `--prepare FOLDER` where there is one, then `--data FOLDER`.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.machine import about
from qkv.compare.trial import open_run, read_training_metrics
from qkv.data import Documents, Tokenizer, read_corpus
from qkv.runs import Config, build, configure, preset
from qkv.storage import write_atomic
from qkv.tasks import MaskedTask
from qkv.tasks.masked import MaskedOptions, score_examples
from qkv.tasks.options import read_options
from qkv.train import Compute, Interrupted, Loop, Objective, Run

RESULTS = Path(__file__).parent / "results" / "masked_wikitext.json"
PARTS = ("train", "valid", "test")
CURVE = "curve.jsonl"


def main() -> None:
    """Train or resume, evaluate, write, print."""
    given = _arguments()
    if given.prepare is not None:
        prepare(given.prepare)
        return
    config = configure("masked", preset("masked", "wikitext"), _changes(given))
    job = _load(config, given.data)
    run, config = open_run(given.run, replace(config, data=job.options), job)
    model = build(config, job)
    loop = Loop(
        _watched(job.objective(model, config.train), job, run),
        config.train,
        run,
        Compute(given.device, given.workers),
        _teller(),
    )
    loop.resume()
    try:
        loop.train()
    except Interrupted as stopped:
        raise SystemExit(f"{stopped}; all is saved: the same command goes on") from None
    model.load_state_dict(loop.best)
    result = {
        **about(),
        "command": "python -m benchmarks.masked_wikitext " + _command(given),
        "parameters": sum(p.numel() for p in model.parameters()),
        "model": config.model,
        "train": asdict(loop.settings),
        "data": job.options,
        **read_training_metrics(run),
        "figures": {part: job.evaluate(model, part) for part in ("valid", "test")},
        "held_out_while_training": [json.loads(line) for line in (run.folder / CURVE).read_text().splitlines()],
        "loss_while_training": _thinned(run),
    }
    write_atomic(given.result, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps({name: result[name] for name in ("parameters", "steps", "seconds", "figures")}, indent=1))


def prepare(folder: Path) -> None:
    """WikiText-2 as one article a line, JSON, for a machine without a package index."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, documents in read_corpus("wikitext").items():
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        write_atomic(folder / f"{part}.jsonl", lines.encode())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument("--run", type=Path, default=Path("runs/masked-wikitext"))
    parser.add_argument("--result", type=Path, default=RESULTS)
    parser.add_argument("--data", type=Path, help="what --prepare wrote")
    parser.add_argument("--prepare", type=Path, help="write the text there and do nothing else")
    parser.add_argument("--workers", type=int, default=4, help="processes that prepare batches")
    parser.add_argument("--dim", type=int, help="a smaller model, to try this script")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--every", type=int, help="updates between validations")
    return parser.parse_args()


def _changes(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    model = {"dim": given.dim, "layers": given.layers}
    train = {
        "steps": given.steps,
        "minutes": given.minutes if given.steps is None else None,
        "batch_size": given.batch_size,
        "validate_every": given.every,
    }
    groups = {"model": model, "train": train}
    return {name: {k: v for k, v in values.items() if v is not None} for name, values in groups.items()}


def _command(given: argparse.Namespace) -> str:
    shown = {name: getattr(given, name) for name in ("device", "minutes", "steps", "dim", "layers", "batch_size")}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in shown.items() if value is not None)


def _load(config: Config, folder: Path | None) -> MaskedTask:
    if folder is None:
        return MaskedTask.load(config.data)
    options = read_options(MaskedOptions, config.data)
    texts = {part: Documents(_reader(folder / f"{part}.jsonl")) for part in PARTS}
    return MaskedTask(Tokenizer.train(texts["train"], "wordpiece", options.size), options, texts)


def _reader(path: Path) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        with path.open() as lines:
            yield from map(json.loads, lines)

    return read


def _watched(task: Objective, job: MaskedTask, run: Run) -> Objective:
    """The same task, which also notes at every validation how many tokens were named and pairs told."""
    examples = list(job.examples("valid"))
    path = run.folder / CURVE

    def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
        found = score_examples(model, examples, may_stop)
        updates = [line["step"] for line in run.read_metrics() if "tokens" in line]
        line = {
            "step": updates[-1],
            "masked_accuracy": found.right / found.masked,
            "masked_loss": found.masked_loss / found.masked,
            "next_sentence_accuracy": found.right_pairs / found.pairs,
            "next_sentence_loss": found.pair_loss / found.pairs,
        }
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return found.score

    return replace(task, validate=validate)


def _thinned(run: Run) -> list[tuple[int, float]]:
    """The mean loss of a hundred stretches of updates, by the last update of each."""
    lines = [line for line in run.read_metrics() if "tokens" in line and line["loss"] is not None]
    size = max(1, len(lines) // 100)
    parts = [lines[start : start + size] for start in range(0, len(lines), size)]
    return [(part[-1]["step"], sum(line["loss"] for line in part) / len(part)) for part in parts]


def _teller() -> Callable[[dict[str, Any]], None]:
    def tell(line: dict[str, Any]) -> None:
        if line.get("event"):
            print({name: value for name, value in line.items() if name != "ids"}, flush=True)

    return tell


if __name__ == "__main__":
    main()
