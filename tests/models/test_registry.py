import subprocess
import sys
from dataclasses import fields

import pytest

from qkv.models import families, family


def test_the_families():
    names = "convolutional decoder encoder encoder_decoder network perceptron recurrent word_vectors"
    detectors = "detr fast faster rcnn"
    assert sorted(families) == sorted([*names.split(), *detectors.split()])
    assert [family(name).model.__name__ for name in families] == [families[name].__name__ for name in families]


@pytest.mark.parametrize("name", sorted(families))
def test_few_settings_each_with_a_default(name):
    config = family(name).config
    assert 1 <= len(fields(config)) <= 13
    assert family(name).configure({}) == config()


def test_a_family_of_another_kind_of_task():
    chosen = family("encoder")
    assert chosen.build(chosen.configure({"dim": 8}), 11, 3).segments.num_embeddings == 3
    with pytest.raises(ValueError, match=r"Encoder does not fit this task: .* \(tokens, segments\), got \(11\)"):
        chosen.build(chosen.configure({}), 11)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'encoder_decode'; did you mean 'encoder_decoder'"):
        family("encoder_decode")
    with pytest.raises(ValueError, match="unknown setting of EncoderDecoder: 'head'; did you mean 'heads'"):
        family("encoder_decoder").configure({"head": 4})
    assert family("recurrent").configure({"cell": "gru", "dim": 8}).cell == "gru"


def test_a_family_from_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "somebody.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from qkv.models.registry import register\n"
        "@dataclass(frozen=True)\n"
        "class TheirsConfig:\n"
        "    dim: int = 7\n"
        "@register('theirs', TheirsConfig)\n"
        "class Theirs(nn.Module):\n"
        "    def __init__(self, config, tokens):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(tokens, config.dim)\n"
    )
    about = tmp_path / "somebody-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[qkv.models]\ntheirs = somebody\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = (
        "from qkv.models import families, family; chosen = family('theirs')\n"
        "print('theirs' in families, chosen.build(chosen.configure({}), 11).table.weight.shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True torch.Size([11, 7])\n", "")
