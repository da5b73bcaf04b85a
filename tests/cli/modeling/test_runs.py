import json
import shutil
import subprocess
import sys

import pytest

from qkv.runs import run_status
from qkv.train import Run
from tests.cli.run import ROOT, qkv
from tests.runs.sealing import reseal

LATER = ("MANIFEST.json", "model.safetensors", "metrics.jsonl", "checkpoints")
"""What a run has only after training, and its seal."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, one that only exists, and folders that are none or broken."""
    found = tmp_path_factory.mktemp("runs")
    qkv("train", "xor", "--steps", "60", "--run", str(found / "finished"), "--json")
    (found / "broken").mkdir()
    (found / "broken" / "config.json").write_text("{")
    (found / "other").mkdir()
    (found / "notes.txt").write_text("no run")
    return found


def test_json_has_stable_keys_and_the_status_of_each_run(folder):
    records = {record["folder"].rpartition("/")[2]: record for record in json.loads(qkv("runs", str(folder), "--json"))}
    assert set(records) == {"finished", "broken"}
    done, broken = records["finished"], records["broken"]
    keys = {"folder", "status", "task", "family", "step", "steps", "best", "seconds", "problem"}
    assert set(done) == set(broken) == keys
    assert (done["status"], done["task"], done["family"]) == ("finished", "xor", "network")
    assert (done["step"], done["steps"]) == (60, 60)
    assert 0 < done["best"] < 1
    assert broken["status"] == "damaged"
    assert "config.json is not JSON or is truncated" in broken["problem"]


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_every_value_is_whole(folder, columns):
    words = qkv("runs", str(folder), columns=columns).split()
    assert "…" not in "".join(words)
    for part in ("finished", "damaged", "xor", "network", "60"):
        assert part in [word.strip(":,│") for word in words]


def test_one_run_and_no_run(folder, tmp_path, monkeypatch):
    assert len(json.loads(qkv("runs", str(folder / "finished"), "--json"))) == 1
    monkeypatch.chdir(tmp_path)
    assert qkv("runs") == "no runs in runs\n"


def test_bad_input_of_a_folder(tmp_path):
    assert "there is no such folder" in qkv("runs", str(tmp_path / "nothing"), code=2)


def test_a_stopped_run_and_a_new_one(folder, tmp_path):
    reseal(shutil.copytree(folder / "finished", tmp_path / "run", ignore=shutil.ignore_patterns(*LATER)))
    assert run_status(tmp_path / "run").status == "new"
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 7, "loss": 1.0}\n{"step": 9, "lo')
    found = run_status(tmp_path / "run")
    assert (found.status, found.step, found.best) == ("stopped", 7, None)


@pytest.mark.process
def test_a_run_is_running_while_a_process_holds_its_lock(folder, tmp_path):
    reseal(shutil.copytree(folder / "finished", tmp_path / "run", ignore=shutil.ignore_patterns(*LATER)))
    code = (
        "import sys; from pathlib import Path; from qkv.train import Run\n"
        "with Run(Path(sys.argv[1])).lock(): print('locked', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline() == b"locked\n"
        assert run_status(tmp_path / "run").status == "running"
        assert Run(tmp_path / "run").is_training()  # asking does not take the lock
        process.stdin.close()
    assert not Run(tmp_path / "run").is_training()
