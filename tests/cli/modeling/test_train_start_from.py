"""`qkv train --start-from`: another training begins with the weights, model settings and vocabulary of a run."""

import json
import shutil
import signal
from hashlib import sha256

import pytest
import torch
from safetensors.torch import load_file

from qkv import runs
from qkv.interop.bert import save_bert
from qkv.train import Loop, Run, loop
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv

PAIRS = (
    *("--set", "train.batch_size=8", "--set", "train.validate_every=4", "--set", "train.warmup=1", "--steps", "8"),
    *("--set", "data.target=characters", "--json"),
)
SIZES = tuple(
    part
    for name in ("dim=16", "heads=2", "hidden_dim=16", "encoder_layers=1", "decoder_layers=1", "max_length=24")
    for part in ("--set", f"model.{name}")
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "first.tsv").write_text("".join(f"{n}\t{str(n)[::-1]}\n" for n in range(100, 180)))
    (folder / "second.tsv").write_text("".join(f"{n}\t{n}\n" for n in range(200, 240)))
    (folder / "letters.tsv").write_text("".join(f"{n}\tx{n}\n" for n in range(200, 240)))
    (folder / "texts.txt").write_text("one two three. four five six. seven eight nine.\n\n" * 900)
    return folder


@pytest.fixture(scope="module")
def first(files):
    run = files / "first"
    qkv("train", "pairs", "--train-file", str(files / "first.tsv"), "--run", str(run), *SIZES, *PAIRS)
    return run


def tune(first, files, name, *more, data="second.tsv", code=0):
    options = ("--start-from", str(first), "--train-file", str(files / data), "--run", str(files / name))
    return qkv("train", "pairs", *options, *PAIRS, *more, code=code)


def test_the_model_and_the_vocabulary_are_those_of_the_start(first, files, monkeypatch):
    before = {name: x.clone() for name, x in load_file(first / "model.safetensors").items()}
    copies = []
    monkeypatch.setattr(
        Loop, "resume", lambda self: copies.append({n: x.clone() for n, x in self.model.state_dict().items()})
    )
    tune(first, files, "tuned", "--resume")
    assert all(torch.equal(copies[0][name], x) for name, x in before.items())
    config = json.loads((files / "tuned" / "config.json").read_text())
    digest = sha256((first / "model.safetensors").read_bytes()).hexdigest()
    assert config["start"] == {"path": str(first), "sha256": digest}
    assert config["model"] == json.loads((first / "config.json").read_text())["model"]
    assert (files / "tuned" / "vocabulary.json").read_bytes() == (first / "vocabulary.json").read_bytes()
    assert not (files / "tuned" / "start.safetensors").exists()
    assert json.loads(qkv("predict", str(files / "tuned"), "123", "--json"))


@pytest.mark.parametrize("step", [2, 6])
def test_a_tuned_run_resumes_without_its_start(first, files, monkeypatch, step):
    """Killed before its first checkpoint, or stopped after it: the same weights as without a stop."""
    start = files / f"start-{step}"
    shutil.copytree(first, start)
    tune(start, files, f"whole-{step}")

    class Killed(BaseException):
        pass

    def fail(self, batch, train_step=Loop._train_step):
        train_step(self, batch)
        if self.progress.step == step:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "_train_step", fail)
        with pytest.raises(Killed):
            tune(start, files, f"killed-{step}")
    shutil.rmtree(start)
    tune(start, files, f"killed-{step}", "--resume")
    weights = [(files / f"{name}-{step}" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


def test_what_contradicts_the_model_is_one_sentence(first, files):
    for more, message in (
        (("--set", "model.dim=32"), "model.dim=32 contradicts --start-from: its model has model.dim=16"),
        (("--set", "model.family=recurrent"), "its model has model.family=encoder_decoder"),
        (("--set", "data.size=3"), "data.size contradicts --start-from"),
    ):
        said = tune(first, files, "refused", *more, code=2)
        assert message in said
        assert len(said.splitlines()) == 1
    said = tune(first, files, "refused", data="letters.tsv", code=2)
    assert "some target tokens are not in the vocabulary of the --start-from model" in said
    said = qkv("train", "xor", "--start-from", str(first), "--run", str(files / "refused"), code=2)
    assert "a model of task 'pairs' cannot start task 'xor'" in said
    assert not (files / "refused").exists()


def test_another_start_cannot_be_resumed_with(first, files):
    tune(first, files, "again")
    tune(first, files, "again", "--resume")
    said = tune(files, files, "again", "--resume", code=2)
    assert f"the run was started with --start-from {first} and cannot continue with --start-from {files}" in said
    said = qkv("train", "pairs", "--run", str(first), "--resume", "--start-from", str(files), code=2)
    assert "the run was started with untrained weights" in said


def test_classes_may_be_others(tmp_path):
    """The last layer is new, and named; the others are copied."""
    for name, classes in (("two", 2), ("three", 3)):
        rows = [f"{x},{y},{'abc'[(x + y) % classes]}" for x in range(9) for y in range(9)]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    common = ("--steps", "2", "--set", "train.validate_every=1", "--json")
    options = ("--train-file", str(tmp_path / "two.csv"), "--run", str(tmp_path / "two"), *common)
    qkv("train", "xor", *options, "--set", "model.family=network")
    options = ("--train-file", str(tmp_path / "three.csv"), "--run", str(tmp_path / "three"), *common)
    done = run_qkv("train", "xor", *options, "--start-from", str(tmp_path / "two"))
    assert done.code == 0, done.stderr
    assert "not in --start-from in this shape, so random" in done.stderr
    assert len(json.loads((tmp_path / "three" / "vocabulary.json").read_text())["classes"]) == 3


def test_a_hugging_face_bert_is_tuned(files, tmp_path):
    text = ("--train-file", str(files / "texts.txt"), "--set", "data.length=16", "--set", "data.examples=4")
    small = ("--set", "model.dim=8", "--set", "model.heads=2", "--set", "model.hidden_dim=8", "--set", "model.layers=1")
    short = ("--steps", "2", "--set", "train.batch_size=2", "--json")
    options = ("--set", "data.size=60", "--set", "model.max_length=16", "--run", str(tmp_path / "bert"))
    qkv("train", "masked", *text, *small, *short, *options)
    _, task, model = runs.load(tmp_path / "bert")
    save_bert(model, tmp_path / "hub")
    task.tokenizer.save(tmp_path / "hub" / "tokenizer.json")
    qkv("train", "masked", *text, *short, "--start-from", str(tmp_path / "hub"), "--run", str(tmp_path / "tuned"))
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert (config["model"]["dim"], config["start"]["path"]) == (8, str(tmp_path / "hub"))


def test_a_stopped_run_is_a_start(first, files, monkeypatch):
    def stop(self, batch, train_step=Loop._train_step):
        train_step(self, batch)
        self.interrupt.received = signal.SIGTERM * (self.progress.step == 5)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "_train_step", stop)
        tune(first, files, "stopped", code=143)
    assert Run(files / "stopped").load_checkpoint() is not None
    tune(files / "stopped", files, "third")
