"""A kind with gates from the command line: train, stop, resume, evaluate, count, and errors."""

import json
import signal

import pytest
from safetensors.torch import load_file

from qkv import runs
from qkv.train import Loop, loop
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv

GATED = "delta+forget+write(largest=2)+output+convolution"
TINY = (
    *("train", "recall", "--set", "model.dim=8", "--set", "train.batch_size=2", "--set", "train.validate_every=4"),
    *("--set", "data.pairs=4", "--set", "data.length=16", "--set", "data.vocabulary=32", "--set", "data.examples=4"),
    *("--set", "train.warmup=2", "--set", "model.convolution=0"),
)


def stop_after(monkeypatch, step):
    """Ask a training to stop after this step, as SIGTERM does."""
    train_step = Loop._train_step

    def step_and_stop(self, batch):
        train_step(self, batch)
        self.interrupt.received = signal.SIGTERM * (self.progress.step == step)

    monkeypatch.setattr(loop.Loop, "_train_step", step_and_stop)


def test_a_gated_run_is_stopped_resumed_and_used(tmp_path, monkeypatch):
    """Resumed to the same weights, bit for bit, as never stopped."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    options = ("--set", f"model.attention={GATED}", "--steps", "12")
    qkv(*TINY, *options, "--run", str(whole))
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        assert run_qkv(*TINY, *options, "--run", str(stopped)).code == 143
    qkv("train", "recall", "--run", str(stopped), "--resume")
    expected, found = (load_file(folder / "model.safetensors") for folder in (whole, stopped))
    assert {name.partition(".attention.gates.")[2] for name in expected} >= {
        *("forget.rate.weight", "forget.rate.bias", "forget.log_factor", "write.strength.weight"),
        "output.factor.weight",
    }
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)
    model = runs.load(stopped)[2]
    assert model.blocks[0].attention.gates.write.largest == 2
    assert json.loads(qkv("eval", str(stopped), "--json"))["examples"] == 4
    assert "gates" in qkv("cost", str(stopped), "--input", "int[1,n]", "--json")


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("delta+forgt", "'forgt'; did you mean 'forget'?"),
        ("delta+write(larges=2)", "'larges'; did you mean 'largest'?"),
        ("dleta+forget", "unknown attention kind 'dleta'; did you mean 'delta'?"),
        ("linear+write", "attention kind 'linear' does not accept WriteGate; leave it out, or use the kind delta"),
        ("delta+forget+channel", "has both forget and channel, but a layer has one of them"),
    ],
)
def test_a_wrong_spec_is_one_sentence(tmp_path, attention, message):
    folder = tmp_path / "run"
    said = qkv(*TINY, "--set", f"model.attention={attention}", "--run", str(folder), "--steps", "2", code=2)
    assert message in said
    assert said.count("\n") == 1
    assert not folder.exists()


def test_gates_are_shown_and_listed(tmp_path):
    shown = json.loads(
        qkv("show", "recall", "--set", f"model.attention={GATED}", "--set", "model.convolution=0", "--json")
    )
    assert GATED in json.dumps(shown)
    assert GATED in qkv(*TINY, "--set", f"model.attention={GATED}", "--dry-run", "--json")
    records = {record["name"]: record for record in json.loads(qkv("list", "gates", "--json"))}
    assert records["channel"]["kinds"] == ["delta", "linear"]
    assert records["write"] == {
        "group": "gates",
        "name": "write",
        "summary": "The write strength per token and head: largest * sigmoid(W x).",
        "options": ["largest"],
        "kinds": ["delta"],
    }


@pytest.mark.training
def test_recall_is_learned_with_gates(tmp_path):
    """16 pairs among 128 tokens, in some ten seconds; guessing is right once in 16."""
    sizes = {"model.dim": 64, "model.convolution": 0, "model.max_length": 64, "data.length": 64, "data.pairs": 16}
    rates = {"data.vocabulary": 128, "train.batch_size": 32, "train.warmup": 50, "train.validate_every": 300}
    settings = {**sizes, **rates, "model.attention": "delta+forget+write+convolution"}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    out = json.loads(qkv("train", "recall", *options, "--run", str(tmp_path / "run"), "--steps", "300", "--json"))
    assert out["figures"]["test"]["chance"] == 1 / 16
    assert out["figures"]["test"]["accuracy"] >= 0.95
