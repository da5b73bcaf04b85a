"""`qkv joint`, and what it changes for `qkv eval` and `qkv predict`, as a user runs them."""

import json
import shutil

import pytest

from qkv.pronunciation.joint_ngram import JointNGram
from tests.cli.run import qkv
from tests.runs.sealing import reseal


@pytest.fixture
def run(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "run")


def test_it_lies_in_the_run_folder_and_a_beam_asks_it(run):
    plain = json.loads(qkv("eval", str(run), "--split", "valid", "--search", "beam", "--json"))
    assert "joint" not in plain
    found = json.loads(qkv("joint", str(run), "--order", "3", "--beams", "4", "--json"))
    kept = JointNGram.read(run / "joint.bin")
    assert found["file"] == str(run / "joint.bin")
    assert found["bytes"] == (run / "joint.bin").stat().st_size
    assert found["n_grams"] == len(kept.last) - 1
    assert (found["weight"], found["sharpness"]) == (kept.weight, kept.sharpness)
    assert found["words"] == 5
    advised = json.loads(qkv("eval", str(run), "--split", "valid", "--search", "beam", "--json"))
    assert advised["joint"] == kept.weight
    speed = {"words_per_second": None}
    without = json.loads(qkv("eval", str(run), "--split", "valid", "--search", "beam", "--joint", "none", "--json"))
    assert "joint" not in without
    assert json.loads(qkv("eval", str(run), "--split", "valid", "--json")) | speed == advised | speed
    greedy = json.loads(qkv("eval", str(run), "--split", "valid", "--search", "greedy", "--json"))
    assert greedy["beams"] == 1
    assert "joint" not in greedy
    assert "beam 4 and joint model" in qkv("eval", str(run), "--split", "valid", "--search", "beam")
    assert qkv("pronounce", "kod", "--model", str(run), "--model-only") == "kod\tK OW2 D\tmodel\n"


def test_elsewhere_and_for_several_runs(run, tiny, tmp_path):
    file = tmp_path / "both.bin"
    said = qkv("joint", str(run), "--with", str(tiny), "--beams", "3", "--out", str(file))
    assert "n-grams" in said
    assert "5 held-out words, beam 3" in said
    assert "--with needs --out FILE" in qkv("joint", str(run), "--with", str(tiny), code=2)
    assert not (run / "joint.bin").exists()
    arguments = ("eval", str(run), "--with", str(tiny), "--split", "valid", "--search", "beam", "--joint", str(file))
    assert "joint" in json.loads(qkv(*arguments, "--json"))


def test_what_cannot_be_is_said(run, tiny, tmp_path):
    assert "no such run folder" in qkv("joint", str(tmp_path / "no"), code=2)
    assert "--beams must be at least 2" in qkv("joint", str(run), "--beams", "1", code=2)
    assert "--order must be at least 1" in qkv("joint", str(run), "--order", "0", code=2)
    missing = qkv("eval", str(run), "--split", "valid", "--joint", str(tmp_path / "no.bin"), code=2)
    assert "no.bin" in missing
    assert "--best 5 needs --search beam" in qkv("eval", str(run), "--search", "greedy", "--best", "5", code=2)
    assert "needs beam search" in qkv("eval", str(run), "--search", "greedy", "--joint", "some.bin", code=2)
    assert "--beams must be at least 1" in qkv("eval", str(run), "--beams", "0", code=2)
    (run / "joint.bin").write_bytes(b"something else")
    qkv("eval", str(run), "--split", "valid", "--search", "greedy")  # which does not need it
    assert "joint.bin" in qkv("eval", str(run), "--split", "valid", "--search", "beam", code=2)
    pairs = str(_pairs(tiny, tmp_path))
    assert "--joint" in qkv("eval", pairs, "--joint", "none", code=2)
    assert "is a run of task 'pairs'" in qkv("joint", pairs, code=2)


def _pairs(tiny, tmp_path):
    """The same run, of task pairs."""
    folder = shutil.copytree(tiny, tmp_path / "pairs")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "task": "pairs"}))
    return reseal(folder)
