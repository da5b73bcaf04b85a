"""Small runs for the API, and a server for one."""

import threading
from contextlib import contextmanager

import openai

from qkv.web.rest import ApiServer, ApiSettings, ServedRun
from tests.web.runs import train

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "äther", "theta"]
MODEL = {"dim": 12, "heads": 2, "hidden_dim": 20, "layers": 1, "max_length": 96, "attention": "taylor"}
TRAIN = {"steps": 2, "batch_size": 3, "warmup": 1, "validate_every": 2}


def train_text(parent, **model):
    """A byte-level language model of one layer, hardly trained: its samples are varied, and never end early."""
    corpus = parent / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join(WORDS[(n * 3 + i * i) % 8] for i in range(30)) for n in range(40)))
    data = {"source": str(corpus), "tokenizer": "bytes", "size": 290, "length": 13}
    return train(parent / "tiny-text", "text", {"model": {**MODEL, **model}, "train": TRAIN, "data": data})


@contextmanager
def running(server):
    """Run a server inside the block."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


def serving_api(folder, **settings):
    """Serve a run inside the block."""
    return running(ApiServer(ServedRun.load(folder), ApiSettings(**settings)))


def client(server, **options):
    """The official client, which tries nothing again unless asked to."""
    given = {"max_retries": 0, "timeout": 30, "api_key": server.token or "none", **options}
    return openai.OpenAI(base_url=f"{server.address}/v1", **given)
