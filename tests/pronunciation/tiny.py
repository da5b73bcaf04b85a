"""A pronouncer that trains in seconds: words of six letters, each letter with one sound."""

from itertools import product
from pathlib import Path

from qkv import runs, tasks
from qkv.train import Compute, Loop, create_run

SOUNDS = {"b": "B", "d": "D", "k": "K", "a": "AE1", "e": "EH0", "o": "OW2"}


def spoken(word):
    """Return the right phones of a word of these letters."""
    return tuple(SOUNDS[letter] for letter in word)


def made_up(length):
    return ["".join(letters) for letters in product(SOUNDS, repeat=length)]


def train_tiny(folder: Path, task: str = "pronounce") -> Path:
    words = [*made_up(1), *made_up(2), *made_up(3)]
    file = folder / "words.tsv"
    file.write_text("".join(f"{word}\t{' '.join(spoken(word))}\n" for word in words))
    model = {"dim": 48, "max_length": 24}
    train = {
        "steps": 150,
        "batch_size": 64,
        "validate_every": 150,
        "warmup": 10,
        "ema_decay": 0.9,
        "learning_rate": 1e-2,
    }
    data = {"train_file": str(file), "held_out": 5}
    changes = {"model": model, "train": {**train, "ema_decay": 0.9, "label_smoothing": 0.0}, "data": data}
    config = runs.configure(task, runs.preset(task, "recurrent"), changes)
    job = tasks.tasks[task].load(config.data)
    run = create_run(folder / "run")
    runs.save_config(run, config, job)
    net = runs.build(config, job)
    Loop(job.objective(net, config.train), config.train, run, Compute(), lambda record: None).train()
    return folder / "run"
