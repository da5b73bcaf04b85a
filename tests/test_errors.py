import pickle
from pathlib import Path

import pytest

from qkv.errors import QkvError, nearest_name, unknown_name_error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (QkvError("no tab"), "no tab"),
        (QkvError("line 3: no tab", Path("a/b.tsv")), "line 3: no tab, in a/b.tsv"),
        (QkvError("there is no run lsmt", "runs", "lstm"), "there is no run lsmt, in runs; did you mean lstm?"),
        (QkvError("unknown task", nearest="recall"), "unknown task; did you mean recall?"),
    ],
)
def test_an_error_is_one_sentence(error, sentence):
    assert str(error) == sentence
    assert str(pickle.loads(pickle.dumps(error))) == sentence


def test_unknown_names_the_nearest_and_all():
    assert str(unknown_name_error("kind", "softmx", ["taylor", "softmax"])) == (
        "unknown kind 'softmx'; did you mean 'softmax'? (there are: softmax, taylor)"
    )
    assert "did you mean" not in str(unknown_name_error("kind", "zzz", ["taylor", "softmax"]))


@pytest.mark.parametrize(
    ("name", "names", "nearest"),
    [
        ("pronouce", ["pairs", "pronounce"], "pronounce"),
        ("lama", ["bert", "llama"], "llama"),
        ("runs", ["rusn"], "rusn"),  # two neighbors swapped are one edit
        ("Softmax", ["softmax"], "softmax"),
        ("wide", ["height", "width"], "width"),
        ("trian.tsv", ["test.csv", "train.tsv"], "train.tsv"),
        ("nosuch.txt", ["out.txt"], ""),
        ("tok.json", ["c.json"], ""),
        ("Z9", ["B9"], ""),
        ("", ["a"], ""),
        ("a", [], ""),
    ],
)
def test_a_name_is_suggested_only_if_it_is_near(name, names, nearest):
    assert nearest_name(name, names) == nearest
