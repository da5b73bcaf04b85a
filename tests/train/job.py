"""A real small job, reversing digits, as a function and as a process that can be killed.

python -m tests.train.job FOLDER '{"steps": 60}' '{"workers": 2}'
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from qkv import storage
from qkv.data import Pair, Vocabulary
from qkv.models import family
from qkv.tasks.seq2seq import Seq2SeqData, make_objective
from qkv.train import Compute, Interrupted, Loop, Run, Settings

SIZES = {"dim": 16, "heads": 2, "hidden_dim": 32, "encoder_layers": 1, "decoder_layers": 1, "max_length": 16}
DIGITS = 281
"""Pairs: 241 to train on, so that the last batch of 16 in an epoch has a single example; 40 to validate with."""


@dataclass(frozen=True)
class Trouble:
    """How the job differs from a plain one."""

    workers: int = 0
    double: bool = False
    """Float64 throughout, and no dropout."""
    slow_writing: float = 0.0
    """Seconds of sleep in the middle of each file of a checkpoint."""
    slow_validation: float = 0.0
    """Seconds that a validation takes at least; its start is marked by a file `validating`."""
    slow_steps: float = 0.0
    """Seconds of sleep after each line of metrics."""
    note_ids: bool = False
    """Whether each process writes the ids of its batches to a file `ids-RANK`."""


def reversal():
    draw, words = random.Random(1), {}
    while len(words) < DIGITS:
        words[tuple(draw.choices("0123456789", k=draw.randint(2, 6)))] = None
    pairs = [Pair(word, (word[::-1],)) for word in words]
    return Seq2SeqData.build({"train": pairs[40:], "valid": pairs[:40]})


def settings_of(**values):
    usual = {"steps": 60, "batch_size": 16, "validate_every": 10, "warmup": 5, "learning_rate": 3e-3, "ema_decay": 0.9}
    return Settings(**{**usual, **values})


def task_of(settings, trouble=Trouble(), **sizes):  # noqa: B008 - frozen
    strings, chosen = reversal(), family("encoder_decoder")
    torch.manual_seed(settings.seed)
    config = chosen.configure({**SIZES, "dropout": 0.0 if trouble.double else 0.1, **sizes})
    model = chosen.model(config, len(strings.sources), len(strings.targets))
    task = make_objective(model.double() if trouble.double else model, strings, settings)
    return replace(task, loss=exact_loss) if trouble.double else task


def exact_loss(model, tensors):
    """The sum of the cross entropy, without a rounding to float32."""
    source, mask, given, wanted = tensors
    logits = model(source, given, mask).flatten(0, 1)
    return functional.cross_entropy(logits, wanted.flatten(), ignore_index=Vocabulary.PAD, reduction="sum")


def work(folder, values, options=None):
    """Train in this folder, or go on there; exits as a command would."""
    torch.set_num_threads(1)
    folder, trouble, settings = Path(folder), Trouble(**(options or {})), settings_of(**values)
    folder.mkdir(parents=True, exist_ok=True)
    task = task_of(settings, trouble)
    if trouble.slow_writing:
        storage.atomic.write_synced = storage.folder.write_synced = _slow_write(trouble.slow_writing)
    if trouble.slow_validation:
        task = replace(task, validate=_slow_validate(task.validate, folder, trouble.slow_validation))
    rank = os.environ.get("RANK", "0")
    (folder / f"process-{rank}").write_text(str(os.getpid()))
    if trouble.note_ids:
        task = replace(task, collate=_noting(task.collate, folder / f"ids-{rank}"))
    loop = Loop(task, settings, Run(folder), Compute(workers=trouble.workers), lambda _: time.sleep(trouble.slow_steps))
    loop.resume()
    try:
        loop.train()
    except Interrupted as stopped:
        sys.exit(128 + stopped.signal)


def losses(folder):
    """(step, loss) of every update."""
    return [(line["step"], line["loss"]) for line in Run(folder).read_metrics() if "loss" in line]


def events(folder, kind):
    return [line for line in Run(folder).read_metrics() if line.get("event") == kind]


def outcome(folder):
    """All that must be the same, to the last bit, however often a run was stopped."""
    newest, _ = storage.latest_valid_step(Path(folder) / "checkpoints")
    files = {name: data for name, data in storage.read_folder(newest).items() if name.endswith(".safetensors")}
    record = storage.read_json(newest / "progress.json")
    scores = [(line["step"], line["score"], line["best"]) for line in events(folder, "validated")]
    return {
        "weights": (Path(folder) / "model.safetensors").read_bytes(),
        "checkpoint": (newest.name, files, record),
        "losses": losses(folder),
        "scores": scores,
    }


def _slow_write(seconds):
    def write(path, data):
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            time.sleep(seconds)
            file.write(data[len(data) // 2 :])
            file.flush()
            os.fsync(file.fileno())

    return write


def _slow_validate(validate, folder, seconds):
    def slowly(model, may_stop):
        (folder / "validating").touch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            may_stop()
            time.sleep(0.01)
        return validate(model, may_stop)

    return slowly


def _noting(collate, path):
    def note(ids):
        with path.open("a") as file:
            file.write(json.dumps(ids) + "\n")
        return collate(ids)

    return note


def command(folder, values, trouble=Trouble()):  # noqa: B008 - frozen
    return ["-m", "tests.train.job", str(folder), json.dumps(values), json.dumps(asdict(trouble))]


if __name__ == "__main__":
    work(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
