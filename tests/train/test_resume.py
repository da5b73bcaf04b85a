"""Stopped anywhere, damaged or measured: a run that goes on ends as one that was left alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.models import Decoder, DecoderConfig
from qkv.storage import read_folder, save_folder
from qkv.train import Interrupted, Objective, Run, cosine_schedule, create_run
from qkv.train.cpu_conditions import VARIABLES
from tests.train.job import command, events, outcome, settings_of, task_of
from tests.train.loops import loop_in, resumed, stop_at


def test_a_repeated_validation_draws_the_same_random_numbers(tmp_path):
    """Its score is a function of seed and step, not of what was drawn before."""
    task = replace(task_of(settings_of()), validate=lambda _, may_stop: (may_stop(), float(torch.rand(())))[1])
    loop_in(tmp_path / "alone", task=task, steps=10).train()
    stop_at(10, loop_in(tmp_path / "run", task=task, steps=10))
    torch.manual_seed(7)
    resumed(tmp_path / "run", task=task, steps=10).train()
    scores = [[line["score"] for line in events(tmp_path / name, "validated")] for name in ("alone", "run")]
    assert len(scores[0]) == 1
    assert scores[0] == scores[1]


@pytest.mark.parametrize(("average", "optimizer"), [(0.0, "adamw"), (0.9, "adamw"), (0.0, "sgd")])
def test_resumed_at_any_step_the_best_weights_are_the_same_to_the_last_bit(tmp_path, average, optimizer):
    values = {"steps": 23, "validate_every": 5, "ema_decay": average, "optimizer": optimizer}
    alone = loop_in(tmp_path / "alone", **values)
    alone.train()
    for moment in (1, 4, 5, 7, 10, 22):
        folder = tmp_path / str(moment)
        stop_at(moment, loop_in(folder, **values))
        last = resumed(folder, **values)
        assert last.progress.step == moment
        last.train()
        assert outcome(folder) == outcome(tmp_path / "alone")
        assert all(torch.equal(last.best[name], value) for name, value in alone.best.items())


def test_stopped_in_validation_twice(tmp_path):
    """The validation is done on the return, at the same step, and counted once."""
    values = {"steps": 10, "validate_every": 5}
    loop_in(tmp_path / "alone", **values).train()
    stop_after = [1, 1]

    def validate(model, may_stop):
        if stop_after and loop.progress.step == 5:
            stop_after.pop()
            loop.interrupt.received = signal.SIGINT
        may_stop()
        return really.validate(model, may_stop)

    for _ in range(2):
        really = task_of(settings_of(**values))
        loop = resumed(tmp_path / "run", task=replace(really, validate=validate), **values)
        with pytest.raises(Interrupted, match="stopped by SIGINT"):
            loop.train()
        assert loop.progress.validated == 0
        assert loop.run.load_checkpoint().record["progress"]["step"] == 5

    def die(record):
        if record.get("event") == "validated":
            raise MemoryError

    loop = resumed(tmp_path / "run", **values)
    loop.report = die
    with pytest.raises(QkvError, match=r"not enough memory in step 6 \(MemoryError\); a new run needs less with"):
        loop.train()
    assert [line["step"] for line in events(tmp_path / "run", "validated")] == [5]
    resumed(tmp_path / "run", **values).train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_a_finished_run_can_be_resumed(tmp_path):
    loop_in(tmp_path / "run", steps=11).train()
    before = outcome(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    assert resumed(tmp_path / "run", steps=11).train().step == 11
    assert outcome(tmp_path / "run") == before


def test_training_goes_on_in_the_same_process_after_a_stop(tmp_path):
    loop_in(tmp_path / "alone", steps=12).train()
    loop = loop_in(tmp_path / "run", steps=12)
    stop_at(4, loop)
    loop.report = lambda _: None
    loop.train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_a_signal_in_the_last_step_is_not_lost(tmp_path):
    loop_in(tmp_path / "alone", steps=11).train()
    loop = loop_in(tmp_path / "run", steps=11)
    stop_at(11, loop)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    resumed(tmp_path / "run", steps=11).train()
    mine, expected = outcome(tmp_path / "run"), outcome(tmp_path / "alone")
    for part in ("weights", "losses", "scores"):
        assert mine[part] == expected[part]


def test_a_signal_while_the_last_is_saved_is_not_lost(tmp_path):
    loop = loop_in(tmp_path / "run", steps=11)

    def report(record):
        loop.interrupt.received = signal.SIGINT * (record["step"] == 11 and "score" in record)

    loop.report = report
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        loop.train()
    loop_in(tmp_path / "alone", steps=11).train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_checkpoints_are_not_trained_over(tmp_path):
    loop_in(tmp_path / "run", steps=11).train()
    with pytest.raises(QkvError, match=r"there is a checkpoint step-000000\d\d already; resume\(\) first"):
        loop_in(tmp_path / "run", steps=11).train()
    with pytest.raises(QkvError, match="there is a run already"):
        create_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"learning_rate": 0.5},
            "the run was started with learning_rate=0.003 and cannot continue with learning_rate=0.5",
        ),
        ({"seed": 1}, "the run was started with seed=0 and cannot continue with seed=1"),
        ({"steps": 10}, "steps=10 is fewer than the 11 steps that the run has done"),
    ],
)
def test_other_settings_are_refused(tmp_path, values, message):
    loop_in(tmp_path / "run", steps=11).train()
    before = outcome(tmp_path / "run")
    with pytest.raises(QkvError, match=message):
        resumed(tmp_path / "run", **{"steps": 11, **values})
    assert outcome(tmp_path / "run") == before


def test_settings_that_are_newer_than_the_run_have_their_defaults(tmp_path):
    stop_at(4, loop_in(tmp_path / "run"))
    path = next((tmp_path / "run" / "checkpoints").iterdir())
    files = read_folder(path)
    record = json.loads(files["progress.json"])
    del record["resume_check"]["settings"]["patience"], record["progress"]["stale"]
    shutil.rmtree(path)
    save_folder(path, {**files, "progress.json": json.dumps(record).encode()})
    assert resumed(tmp_path / "run").progress.step == 4
    with pytest.raises(QkvError, match="started with patience=0 and cannot continue with patience=2"):
        resumed(tmp_path / "run", patience=2)


def test_other_data_and_other_models_are_refused(tmp_path):
    loop_in(tmp_path / "run", steps=11).train()
    task = task_of(settings_of())
    with pytest.raises(QkvError, match="the first batch is not the one"):
        resumed(tmp_path / "run", task=replace(task, order=lambda step: task.order(step + 1)), steps=11)
    with pytest.raises(QkvError, match="the checkpoint is of another model: size mismatch for encoder.0.feed_forward"):
        resumed(tmp_path / "run", task=task_of(settings_of(), hidden_dim=48), steps=11)


def test_other_conditions_are_announced(tmp_path):
    stop_at(3, loop_in(tmp_path / "run"))
    torch.set_num_threads(2)
    resumed(tmp_path / "run")
    (line,) = events(tmp_path / "run", "resumed")
    assert (line["exact"], line["changed"]) == (False, {"threads": [1, 2]})


@pytest.mark.parametrize("name", ["model", "optimizer", "best", "progress.json", "MANIFEST.json"])
@pytest.mark.parametrize("how", ["a flipped bit", "truncated", "missing"])
def test_a_damaged_checkpoint_falls_back_and_still_ends_the_same(tmp_path, name, how):
    values = {"steps": 15, "validate_every": 5}
    loop_in(tmp_path / "run", **values).train()
    expected = outcome(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    path = tmp_path / "run" / "checkpoints" / "step-00000015" / (name if "." in name else f"{name}.safetensors")
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.unlink()
    if how != "missing":
        path.write_bytes(data if how == "a flipped bit" else data[:-1])
    loop = resumed(tmp_path / "run", **values)
    assert loop.progress.step == 10
    (line,) = events(tmp_path / "run", "damaged_checkpoint")
    assert path.name in line["message"] or path.stem in line["message"]
    loop.train()
    assert outcome(tmp_path / "run") == expected


def test_a_full_disk_ends_training_and_loses_nothing(tmp_path, monkeypatch):
    values = {"steps": 15, "validate_every": 5}
    loop_in(tmp_path / "alone", **values).train()
    loop = loop_in(tmp_path / "run", **values)

    def full(folder, files):
        if folder.name == "step-00000010":
            raise QkvError("cannot save step-00000010 (No space left on device)", folder.parent)
        save_folder(folder, files)

    with monkeypatch.context() as patched:
        patched.setattr("qkv.train.checkpoint.save_folder", full)
        with pytest.raises(QkvError, match="No space left on device"):
            loop.train()
    loop = resumed(tmp_path / "run", **values)
    assert loop.progress.step == 5
    loop.train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_tied_weights_and_a_buffer_go_through_a_checkpoint(tmp_path):
    """A decoder that predicts with what it reads with, and counts its steps in a buffer."""

    def task():
        torch.manual_seed(0)
        model = Decoder(DecoderConfig(dim=8, heads=2, hidden_dim=16, layers=1, max_length=8), 11)
        model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        words = torch.arange(44).view(4, 11)[:, :7] % 11

        def loss(model, tensors):
            model.calls += 1
            logits = model(tensors[0][:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), tensors[0][:, 1:].flatten(), reduction="sum")

        return Objective(
            model, lambda step: [0, 1, 2, 3], lambda ids: (words[ids],), lambda t: 24, loss, lambda *_: 0.0
        )

    values = {"steps": 12, "validate_every": 4, "ema_decay": 0.5}
    loop_in(tmp_path / "alone", task=task(), **values).train()
    stop_at(6, loop_in(tmp_path / "run", task=task(), **values))
    loop = resumed(tmp_path / "run", task=task(), **values)
    loop.train()
    assert loop.model.lm_head.weight is loop.model.embed.weight
    assert (loop.model.calls.item(), loop.ema["calls"].item(), loop.best["calls"].item()) == (12, 12, 4)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def with_clock(monkeypatch, stalls=()):
    """Every look at the clock takes a sixteenth of a second, at `stalls` ten seconds; an update looks three times."""
    now, looks = [0.0], [0]

    def look():
        looks[0] += 1
        now[0] += 10.0 if looks[0] in stalls else 1 / 16
        return now[0]

    monkeypatch.setattr("qkv.train.loop.time", SimpleNamespace(perf_counter=look))


@pytest.mark.parametrize("moments", [(), (5,), (25, 33), (40,), (39, 41)])
def test_minutes_are_measured_once_and_then_steps_are_fixed(tmp_path, monkeypatch, moments):
    """15 seconds at 3/16 a step are 80 steps, also when the measuring itself was interrupted."""
    with_clock(monkeypatch)
    values = {"steps": None, "minutes": 0.25, "validate_every": 1000, "warmup": 10}
    for moment in moments:
        stop_at(moment, resumed(tmp_path / "run", **values))
    loop = resumed(tmp_path / "run", **values)
    loop.train()
    assert loop.progress.steps == loop.progress.step == 80
    (line,) = events(tmp_path / "run", "steps")
    assert (line["step"], line["steps"]) == (40, 80)
    rates = [line["rate"] for line in Run(tmp_path / "run").read_metrics() if "loss" in line]
    assert rates == [cosine_schedule(settings_of(**{**values, "steps": 80}), step) for step in range(80)]


def test_steps_measured_between_a_checkpoint_and_a_kill(tmp_path):
    """config.json knows them, the checkpoint does not."""
    values = {"steps": None, "minutes": 0.2, "validate_every": 1000}
    stop_at(20, loop_in(tmp_path / "run", **values))
    last = resumed(tmp_path / "run", **{**values, "steps": 44})
    assert (last.progress.step, last.progress.steps) == (20, 44)
    last.train()
    assert last.progress.step == 44


def test_a_machine_that_is_held_up_for_a_moment_does_not_shorten_the_training(tmp_path, monkeypatch):
    """Two of the thirty measured steps take ten seconds more: still 80 steps."""
    with_clock(monkeypatch, stalls=(50, 100))
    loop = loop_in(tmp_path / "run", steps=None, minutes=0.25, validate_every=1000, warmup=10)
    loop.train()
    assert loop.progress.steps == 80


def test_a_run_whose_steps_were_measured_is_the_same_when_resumed_with_them(tmp_path, monkeypatch):
    with_clock(monkeypatch)
    values = {"steps": None, "minutes": 0.25, "validate_every": 1000, "warmup": 10}
    loop_in(tmp_path / "alone", **values).train()
    stop_at(60, loop_in(tmp_path / "run", **values))
    resumed(tmp_path / "run", **{**values, "steps": 80}).train()
    mine, expected = outcome(tmp_path / "run"), outcome(tmp_path / "alone")
    assert mine["weights"] == expected["weights"]
    assert mine["losses"] == expected["losses"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_that_choose_cpu_kernels_are_conditions(tmp_path, monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    stop_at(3, loop_in(tmp_path / "run"))
    monkeypatch.setenv(variable, "something")
    resumed(tmp_path / "run")
    (line,) = events(tmp_path / "run", "resumed")
    assert not line["exact"]
    assert f"{variable}=something" in line["changed"]["environment"][1]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has one set of kernels")
def test_other_cpu_kernels_are_not_called_exact(tmp_path):
    """In a new process, since torch chooses its kernels when it starts."""
    stop_at(3, loop_in(tmp_path / "run"))
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, *command(tmp_path / "run", {"steps": 60})], check=True, env=environment, cwd=root)
    (line,) = events(tmp_path / "run", "resumed")
    assert not line["exact"]
    assert line["changed"]["cpu_capability"][1] == "DEFAULT"
