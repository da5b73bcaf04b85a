"""Small runs that train in a moment, and a server for one."""

import threading
from contextlib import contextmanager

from qkv import runs, tasks
from qkv.train import Loop, create_run
from qkv.web.server import Server
from tests.tasks.tiny import TINY, write_pairs

PAIRS = {
    "model": {"dim": 24, "heads": 3, "hidden_dim": 16, "encoder_layers": 2, "decoder_layers": 2, "max_length": 24},
    "train": {"steps": 30, "batch_size": 15, "validate_every": 15, "learning_rate": 0.02},
}
RECALL = {
    "model": {"dim": 12, "heads": 2, "layers": 2, "attention": "taylor", "key_dim": 5},
    "train": {"steps": 2, "batch_size": 4, "warmup": 1, "validate_every": 2},
    "data": TINY,
}
MASKED = {
    "model": {"dim": 24, "heads": 3, "hidden_dim": 16, "layers": 2, "max_length": 16},
    "train": {"steps": 2, "batch_size": 4, "warmup": 1, "validate_every": 2},
    "data": {"size": 600, "length": 16, "examples": 4},
}


def train(folder, task, changes):
    """A run folder of this task, trained for a few steps."""
    config = runs.configure(task, runs.preset(task, None), changes)
    task = tasks.tasks[task].load(config.data)
    run = create_run(folder)
    runs.save_config(run, config, task)
    loop = Loop(task.objective(runs.build(config, task), config.train), config.train, run)
    loop.train()
    return folder


def train_pairs(parent, **model):
    return train(
        parent / "pairs", "pairs", {**PAIRS, "model": {**PAIRS["model"], **model}, "data": write_pairs(parent)}
    )


def train_recall(parent):
    return train(parent / "recall", "recall", RECALL)


def train_masked(parent):
    return train(parent / "masked", "masked", MASKED)


def train_xor(parent):
    return train(parent / "xor", "xor", {"train": {"steps": 2, "validate_every": 2}})


@contextmanager
def serving(backend, **limits):
    """Serve a backend inside the block."""
    server = Server(backend, **limits)
    thread = server.thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()
