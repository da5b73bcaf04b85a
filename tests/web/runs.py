"""Small runs, trained in a moment, and a server for one."""

import threading
from contextlib import contextmanager

from qkv import tasks
from qkv.train import Loop, create
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


def train(folder, task, changes):
    """A run folder of this task, trained for a few steps."""
    config = tasks.configure(task, tasks.preset(task, None), changes)
    job = tasks.tasks[task].load(config.data)
    run = create(folder)
    tasks.write(run, config, job)
    loop = Loop(job.objective(tasks.build(config, job), config.train), config.train, run)
    loop.train()
    return folder


def train_pairs(parent, **model):
    return train(
        parent / "pairs", "pairs", {**PAIRS, "model": {**PAIRS["model"], **model}, "data": write_pairs(parent)}
    )


def train_recall(parent):
    return train(parent / "recall", "recall", RECALL)


@contextmanager
def serving(bench, **limits):
    """The address of a bench that is being served."""
    server = Server(bench, **limits)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
