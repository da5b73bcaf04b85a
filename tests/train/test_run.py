import errno
import json
import os

import pytest
import torch

from qkv.errors import QkvError
from qkv.storage import latest_valid_step
from qkv.train import Run, create_run

TENSORS = {"model": {"a": torch.arange(7.0)}}


def checkpointed(folder, *steps):
    run = create_run(folder)
    for step in steps:
        run.save_checkpoint(step, TENSORS, {"progress": {"step": step}})
    return run


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def damage(run, step):
    (run.checkpoints / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")


def test_metrics_are_on_disk_before_the_checkpoint(tmp_path, monkeypatch):
    """After a power failure a checkpoint must not know of steps that metrics.jsonl has lost."""
    run, synced, fsync = create_run(tmp_path / "run"), [], os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    run.log({"step": 1, "loss": 2.0})
    monkeypatch.setattr(os, "fsync", note)
    run.save_checkpoint(1, TENSORS, {"progress": {"step": 1}})
    assert synced[0] == run.metrics.stat().st_ino
    assert len(synced) > 1


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "model.safetensors"])
def test_a_folder_with_a_run_in_it_is_refused(tmp_path, name):
    create_run(tmp_path / "a" / "b")
    create_run(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / name).touch()
    with pytest.raises(QkvError, match=rf"there is a run already \({name}\); continue it with --resume"):
        create_run(tmp_path / "a" / "b")


def test_of_several_processes_the_first_sees_to_the_folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    monkeypatch.setenv("RANK", "1")
    assert create_run(tmp_path).folder == tmp_path
    assert not create_run(tmp_path / "none").folder.exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(QkvError, match=r"the run folder cannot be created \(Not a directory\)"):
        create_run(tmp_path / "file" / "run")


def test_checkpoints_go_but_for_the_last_two(tmp_path):
    run = checkpointed(tmp_path, 10, 20, 30)
    assert names(run) == ["step-00000020", "step-00000030"]
    found = run.load_checkpoint()
    assert (found.record, found.problems) == ({"progress": {"step": 30}}, [])
    assert torch.equal(found.tensors["model"]["a"], torch.arange(7.0))


def test_damaged_newer_ones_never_push_out_the_good(tmp_path):
    """Of four, made by hand, the last two are damaged; the run goes on from the second, and saves before the third."""
    run = checkpointed(tmp_path, 10, 20)
    kept, run.checkpoints = run.checkpoints, tmp_path / "later"
    for step in (30, 40):
        run.save_checkpoint(step, TENSORS, {"progress": {"step": step}})
        (tmp_path / "later" / f"step-{step:08d}").rename(kept / f"step-{step:08d}")
    run.checkpoints = kept
    damage(run, 30)
    damage(run, 40)
    found = run.load_checkpoint()
    assert found.record["progress"]["step"] == 20
    assert [str(problem).split(",")[0] for problem in found.problems] == [
        "model.safetensors has 0 bytes",
        "model.safetensors has 0 bytes",
    ]
    run.rewind(20, 20)
    run.save_checkpoint(25, TENSORS, {"progress": {"step": 25}})
    assert names(run) == ["step-00000020", "step-00000025", "step-00000030.damaged-1", "step-00000040.damaged-1"]
    assert latest_valid_step(run.checkpoints) == (run.checkpoints / "step-00000025", [])


def test_all_damaged(tmp_path):
    run = checkpointed(tmp_path, 10)
    damage(run, 10)
    with pytest.raises(QkvError, match="model.safetensors has 0 bytes"):
        run.load_checkpoint()


def test_a_good_one_of_the_same_step_stays(tmp_path):
    run = checkpointed(tmp_path, 10)
    run.save_checkpoint(10, TENSORS, {"progress": {"step": 10, "validated": 10}})
    assert run.load_checkpoint().record == {"progress": {"step": 10}}
    damage(run, 10)
    run.save_checkpoint(10, TENSORS, {"progress": {"step": 10, "validated": 10}})
    assert run.load_checkpoint().record == {"progress": {"step": 10, "validated": 10}}


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.train.checkpoint.FORMAT", 3)
    run = checkpointed(tmp_path, 10)
    with pytest.raises(QkvError, match="progress.json has format 3, but this version of qkv reads up to 2"):
        run.load_checkpoint()


def test_a_number_that_is_not_finite_is_null_in_the_metrics(tmp_path):
    run = create_run(tmp_path)
    run.log({"step": 1, "loss": float("nan"), "norm": float("inf"), "rate": 0.5})
    text = run.metrics.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 1, "loss": None, "norm": None, "rate": 0.5}
    assert run.read_metrics() == [{"step": 1, "loss": None, "norm": None, "rate": 0.5}]


def test_rewinding_drops_what_will_be_done_again(tmp_path):
    run = create_run(tmp_path)
    lines = [
        {"step": 9, "loss": 2.0},
        {"step": 10, "loss": 1.0},
        {"step": 10, "event": "validated", "score": 3.0},
        {"step": 10, "event": "resumed"},
        {"step": 11, "loss": 0.5},
    ]
    for line in lines:
        run.log(line)
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 3, "lo\xff\xfe\0')
    assert run.read_metrics() == lines
    run.rewind(10, 10)
    assert run.read_metrics() == lines[:4]
    run.rewind(10, 0)
    assert run.read_metrics() == [lines[0], lines[1], lines[3]]
    assert run.metrics.read_text().endswith("\n")
    run.rewind(0, 0)
    assert run.metrics.read_text() == ""


def test_rewinding_removes_what_a_kill_left(tmp_path):
    run = checkpointed(tmp_path, 10)
    (run.checkpoints / f"step-00000020.tmp-{2**22 + 1}").mkdir()
    (tmp_path / f"model.safetensors.tmp-{2**22 + 1}-7").touch()
    run.rewind(10, 10)
    assert sorted(os.listdir(tmp_path)) == ["checkpoints"]
    assert names(run) == ["step-00000010"]


def test_metrics_that_cannot_be_written(tmp_path, monkeypatch):
    run = create_run(tmp_path)
    run.metrics.mkdir()
    with pytest.raises(QkvError, match=r"cannot write metrics.jsonl \(Is a directory\)"):
        run.log({"step": 1})


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, at):
    """The file system refuses the first, second, ... file that is made safe."""
    run = checkpointed(tmp_path, 10)
    run.log({"step": 20})
    calls, really = [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(QkvError, match="No space left on device"):
            run.save_checkpoint(20, TENSORS, {"progress": {"step": 20}})
    assert names(run) == ["step-00000010"]
    assert run.load_checkpoint().record["progress"]["step"] == 10


def test_no_checkpoint_at_all(tmp_path):
    assert Run(tmp_path).load_checkpoint() is None
    assert Run(tmp_path).read_metrics() == []
    Run(tmp_path).rewind(0, 0)
