"""A run that is stopped is used, and one that is finished is trained longer."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from qkv import runs
from qkv.errors import QkvWarning
from qkv.train import Loop, Run, loop
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv

RECALL = (
    *("train", "recall", "--set", "model.dim=8", "--set", "train.batch_size=2", "--set", "train.validate_every=4"),
    *("--set", "data.pairs=4", "--set", "data.length=16", "--set", "data.vocabulary=32", "--set", "data.examples=4"),
    *("--set", "train.warmup=2"),
)


@pytest.fixture
def stop(monkeypatch):
    """Return `stop(folder, step, *options)`: train and ask to stop after this step, as SIGTERM does."""

    def start(folder, step, *options):
        train_step = Loop._train_step

        def step_and_stop(self, batch):
            train_step(self, batch)
            self.interrupt.received = signal.SIGTERM * (self.progress.step == step)

        monkeypatch.setattr(loop.Loop, "_train_step", step_and_stop)
        done = run_qkv(*RECALL, "--run", str(folder), *options)
        monkeypatch.undo()
        assert done.code == 143, done.stderr
        return done.stderr

    return start


def losses(folder):
    return [(line["step"], line["loss"], line["rate"]) for line in Run(folder).read_metrics() if "loss" in line]


def train(folder, *options):
    return qkv(*RECALL, "--run", str(folder), "--json", *options)


def test_a_stopped_run_is_used_and_says_so(tmp_path, stop):
    folder = tmp_path / "run"
    assert "all is saved" in stop(folder, 6, "--steps", "12")
    done = run_qkv("eval", str(folder), "--json")
    assert json.loads(done.stdout)["examples"] > 0
    said = f"qkv: training is not finished in {folder}: the last checkpoint is of step 6 of 12; "
    assert done.stderr == f"{said}using the best weights, of step 4\n"
    assert run_qkv("look", str(folder), "1 2 3", "--out", str(tmp_path / "look.html")).stderr == done.stderr
    saved = Run(folder).load_checkpoint().tensors["best"]
    with pytest.warns(QkvWarning, match="the last checkpoint is of step 6 of 12"):
        _, _, model = runs.load(folder)
    assert all(saved[name].equal(value) for name, value in model.state_dict().items())


def test_a_checkpoint_of_another_run_is_not_used(tmp_path, stop):
    for name in ("run", "other"):
        stop(tmp_path / name, 6, "--steps", "12", "--set", f"model.dropout={0.1 * len(name):.1f}")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "run" / "checkpoints")
    assert "the checkpoint is of another run" in qkv("eval", str(tmp_path / "run"), code=2)


@pytest.mark.parametrize(("decay", "name"), [("0", "model"), ("0.9", "ema")])
def test_a_run_that_was_never_validated_gives_its_last_weights(tmp_path, stop, decay, name):
    stop(tmp_path / "run", 3, "--steps", "12", "--set", f"train.ema_decay={decay}")
    tensors = Run(tmp_path / "run").load_checkpoint().tensors
    with pytest.warns(QkvWarning, match="which were not validated yet"):
        _, _, model = runs.load(tmp_path / "run")
    assert all(tensors[name][key].equal(value) for key, value in model.state_dict().items())
    assert not all(tensors["best"][key].equal(value) for key, value in model.state_dict().items())


def test_a_finished_run_is_trained_longer(tmp_path, stop):
    """The schedule is that of the new length from there on, and a stop on the way changes nothing."""
    folder, disturbed = tmp_path / "run", tmp_path / "disturbed"
    train(folder, "--steps", "6")
    shutil.copytree(folder, disturbed)
    train(folder, "--resume", "--steps", "12")
    stop(disturbed, 7, "--resume", "--steps", "12")
    assert not (disturbed / "model.safetensors").exists()
    train(disturbed, "--resume")
    assert json.loads((folder / "config.json").read_text())["train"]["steps"] == 12
    train(tmp_path / "fresh", "--steps", "12")
    rates = {name: [rate for _, _, rate in losses(tmp_path / name)] for name in ("run", "fresh")}
    assert rates["run"][6:] == rates["fresh"][6:]
    assert rates["run"][5] < rates["run"][6]
    assert losses(folder) == losses(disturbed)
    assert [step for step, _, _ in losses(folder)] == list(range(1, 13))
    assert (folder / "model.safetensors").read_bytes() == (disturbed / "model.safetensors").read_bytes()


def test_a_stopped_run_is_given_another_length(tmp_path, stop):
    folder = tmp_path / "run"
    stop(folder, 6, "--steps", "12")
    done = run_qkv(*RECALL, "--run", str(folder), "--json", "--resume", "--steps", "8")
    assert (done.code, len(losses(folder))) == (0, 8)
    assert "the run had 12 steps and is trained to 8 now" in done.stderr


def test_fewer_steps_than_done_is_one_sentence_and_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    train(folder, "--steps", "6")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = qkv(*RECALL, "--run", str(folder), "--resume", "--steps", "5", code=2)
    assert said == f"qkv: steps=5 is fewer than the 6 steps that the run has done, in {folder}\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("more", [(), ("--steps", "12")])
def test_a_finished_run_without_checkpoints_does_not_start_again(tmp_path, more):
    folder = tmp_path / "run"
    train(folder, "--steps", "6")
    shutil.rmtree(folder / "checkpoints")
    weights = (folder / "model.safetensors").read_bytes()
    said = qkv(*RECALL, "--run", str(folder), "--resume", *more, code=2)
    assert "the run is finished and its checkpoints were removed" in said
    assert (folder / "model.safetensors").read_bytes() == weights


def test_what_a_resume_drops_is_counted(tmp_path, stop):
    folder = tmp_path / "run"
    stop(folder, 6, "--steps", "12")
    shutil.rmtree(folder / "checkpoints")
    lines = len(Path(folder / "metrics.jsonl").read_text().splitlines())
    done = run_qkv(*RECALL, "--run", str(folder), "--json", "--resume")
    assert f"no checkpoint is there: starting again from step 0; {lines} lines of metrics.jsonl" in done.stderr
    assert [step for step, _, _ in losses(folder)] == list(range(1, 13))


def test_checkpoints_removed_while_training_are_told_of(tmp_path, monkeypatch):
    log = Run.log

    def log_and_remove(self, record):
        log(self, record)
        if record["step"] == 6 and "loss" in record:
            shutil.rmtree(self.checkpoints)

    monkeypatch.setattr(Run, "log", log_and_remove)
    done = run_qkv(*RECALL, "--run", str(tmp_path / "run"), "--steps", "12", "--json")
    assert (done.code, done.stderr.count("the folder checkpoints/ was removed")) == (0, 1)


@pytest.mark.parametrize("linked", ["checkpoints", "checkpoints/step-00000006"])
def test_linked_checkpoints_are_refused_and_nothing_is_removed(tmp_path, stop, linked):
    folder, others = tmp_path / "run", tmp_path / "others"
    stop(folder, 6, "--steps", "12")
    (folder / linked).rename(others)
    (others / "notes.tmp-1").write_text("mine")
    (folder / linked).symlink_to(others)
    before = sorted(path.relative_to(others) for path in others.rglob("*"))
    said = qkv(*RECALL, "--run", str(folder), "--resume", code=2)
    assert f"{linked} is a symbolic link, and training would remove files where it points to" in said
    assert len(said.splitlines()) == 1
    assert sorted(path.relative_to(others) for path in others.rglob("*")) == before
