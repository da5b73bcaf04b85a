import json
import shutil

import pytest

from qkv.errors import QkvError
from qkv.pronunciation import NeuralG2P, Pronouncer, bundled, pack
from qkv.pronunciation.bundled import model_folder
from qkv.pronunciation.joint_fit import fit_joint_ngram
from tests.pronunciation.tiny import made_up, spoken
from tests.runs.sealing import reseal


@pytest.fixture
def folder(tiny, tmp_path, monkeypatch):
    """The tiny model in the place of the bundled one."""
    place = tmp_path / "model"
    pack(tiny, place)
    monkeypatch.setattr(bundled, "FOLDER", place)
    return place


def test_it_is_the_three_files_and_their_manifest(folder):
    assert {path.name for path in folder.iterdir()} == {*bundled.MODEL_FILES, "MANIFEST.json"}
    assert set(json.loads((folder / "MANIFEST.json").read_text())["files"]) == set(bundled.MODEL_FILES)


def test_a_joint_model_comes_with_it(tiny, tmp_path):
    run = shutil.copytree(tiny, tmp_path / "run")
    fit_joint_ngram([(word, spoken(word)) for word in made_up(2)], order=2).write(run / "joint.bin")
    pack(run, tmp_path / "model")
    assert set(json.loads((tmp_path / "model" / "MANIFEST.json").read_text())["files"]) == {
        *bundled.MODEL_FILES,
        "joint.bin",
    }
    packed = NeuralG2P.open(tmp_path / "model").joint
    assert packed is not None
    assert packed == NeuralG2P.open(run).joint


def test_it_does_not_tell_where_files_were(tiny, tmp_path):
    config = json.loads((tiny / "config.json").read_text())
    assert config["data"]["train_file"].startswith("/")
    lessons = {"teachers": "/home/somebody/runs/first, runs/second", "unlabeled": "/home/somebody/words.txt"}
    run = tmp_path / "run"
    run.mkdir()
    for name in bundled.MODEL_FILES:
        (run / name).write_bytes((tiny / name).read_bytes())
    (run / "config.json").write_text(json.dumps({**config, "data": {**config["data"], **lessons}}))
    pack(run, tmp_path / "model")
    packed = json.loads((tmp_path / "model" / "config.json").read_text())
    assert packed["data"]["train_file"] == "words.tsv"
    assert (packed["data"]["teachers"], packed["data"]["unlabeled"]) == ("first,second", "words.txt")
    assert packed["model"] == config["model"]
    assert NeuralG2P.open(tmp_path / "model").predict(["kod"])[0][0].phones == spoken("kod")


def test_it_is_found_and_answers(folder):
    assert Pronouncer(model_only=True).word("kod").best[0].phones == spoken("kod")


def test_half_the_size_and_the_same_answers(tiny, tmp_path):
    (tmp_path / "card.md").write_text("what it is")
    pack(tiny, tmp_path / "half", half=True, card=tmp_path / "card.md")
    assert (tmp_path / "half" / "README.md").read_text() == "what it is"
    whole, half = ((place / "model.safetensors").stat().st_size for place in (tiny, tmp_path / "half"))
    assert half < 0.6 * whole
    network = NeuralG2P.open(tmp_path / "half")
    words = made_up(3)
    assert [ways[0].phones for ways in network.predict(words)] == [spoken(word) for word in words]
    assert {str(parameter.dtype) for parameter in network.model.parameters()} == {"torch.float32"}


def test_a_damaged_one_is_refused(folder):
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(QkvError, match="model.safetensors is damaged"):
        model_folder()
    with pytest.raises(QkvError, match="model.safetensors is damaged"):
        Pronouncer(model_only=True).word("kod")


def test_a_run_that_is_not_done_cannot_be_packed(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(QkvError, match="there is no file config.json"):
        pack(tmp_path / "run", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_run_of_something_else_is_refused(tiny, tmp_path):
    pack(tiny, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    config["data"]["target"] = "characters"
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    reseal(tmp_path / "other")
    with pytest.raises(QkvError, match="does not map letters to phones"):
        NeuralG2P.open(tmp_path / "other")
