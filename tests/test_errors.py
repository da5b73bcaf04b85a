import pickle
from pathlib import Path

import pytest

from qkv.errors import QkvError, unknown_name_error


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
