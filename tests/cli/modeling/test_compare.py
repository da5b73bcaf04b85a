import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from qkv.cli.modeling.compare import _run, _TrialLines
from qkv.compare.comparison import ComparisonStatus
from qkv.train import Interrupted
from tests.cli.run import qkv

TINY = ["--set", "data.vocabulary=16", "--set", "data.length=8", "--set", "data.pairs=2", "--set", "data.examples=32"]
ONE_TRAINING = ["--rates", "0.01", "--seeds", "1"]
QUICK = [*TINY, "--set", "model.dim=8", "--steps", "3", "--set", "train.batch_size=4", *ONE_TRAINING]


@pytest.mark.parametrize(
    ("stop", "code"),
    [(KeyboardInterrupt(), 130), (Interrupted(signal.SIGINT), 130), (Interrupted(signal.SIGTERM), 143)],
)
def test_a_signal_ends_it_and_prints_how_to_resume(stop, code, capsys):
    def run():
        raise stop

    with pytest.raises(SystemExit) as left:
        _run(SimpleNamespace(run=run, folder=Path("here")))
    assert left.value.code == code
    assert "what was finished is in here/compare.json" in capsys.readouterr().err


def test_a_line_per_trial_without_a_terminal():
    printed = []
    lines = _TrialLines(printed.append)
    for done, about in ((0, "a"), (0.5, "a"), (1, "a"), (1, "b"), (2, "b")):
        lines(ComparisonStatus(done, 2, about))
    assert printed == ["1 of 2: a", "2 of 2: b"]


def test_table_and_folder(tmp_path):
    out = tmp_path / "out"
    text = qkv("compare", "recall", "--attention", "softmax,taylor", "--positions", "t5", *QUICK, "--out", str(out))
    assert "softmax + t5" in text
    assert "taylor + t5: refused: positions 't5' give a bias" in text
    assert str(out / "compare.svg") in text
    kept = json.loads((out / "compare.json").read_text())
    assert [training["run"] for training in kept["trainings"]] == ["softmax_t5/rate-0.01-seed-0"]


def test_rates_sizes_and_rules(tmp_path):
    arguments = [
        *TINY,
        "--set",
        "train.batch_size=4",
        "--rates",
        "0.1,0.01,0.001",
        "--steps",
        "4",
        "--seeds",
        "1",
        "--search",
        "0.5",
    ]
    text = qkv("compare", "recall", "--sizes", "dim=8,dim=16", *arguments, "--out", str(tmp_path))
    assert "3 tried for each candidate, with one seed over 50% of the length" in text
    assert "equal tokens: each training learned from 24 queries" in text  # 4 rows x (2 pairs, 1 pair, ...) x 4 steps
    kept = json.loads((tmp_path / "compare.json").read_text())
    assert [record["contestant"] for record in kept["records"]] == ["dim=8", "dim=16"]
    assert [training["steps"] for training in kept["trainings"]] == [2, 2, 2, 4] * 2


def test_json_is_what_the_folder_has(tmp_path):
    text = qkv("compare", "recall", "--attention", "softmax,linear", *QUICK, "--out", str(tmp_path), "--json")
    records = json.loads(text)
    assert [record["contestant"] for record in records] == ["softmax", "linear"]
    assert records == json.loads((tmp_path / "compare.json").read_text())["records"]


def test_the_caveat_of_short_strings_is_printed(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"{'ab' * n}\t{'X Y ' * n}\n" for n in range(1, 13)))
    files = ["--train-file", str(tmp_path / "a.tsv"), "--test-file", str(tmp_path / "a.tsv")]
    text = qkv(
        *("compare", "pairs", "--models", "recurrent:attention=none;dim=6", "--steps", "2", *ONE_TRAINING, *files),
        *("--out", str(tmp_path / "out"), "--plugin", "examples.relu_kind"),
    )
    assert "strings of at most 24 tokens: short strings are no evidence about long range" in text
    assert "levenshtein" in text


def test_no_valid_candidate_is_wrong_use(tmp_path):
    arguments = ("compare", "recall", "--attention", "taylor", "--positions", "t5", *QUICK, "--out", str(tmp_path))
    assert "counting its cost" in qkv(*arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recal", "--attention", "softmax"), "unknown task 'recal'; did you mean 'recall'?"),
        (("recall", "--attention", "tailor"), "unknown attention kind 'tailor'; did you mean 'taylor'?"),
        (("recall", "--sizes", "dim"), "--sizes 'dim': expected SETTING=VALUE"),
        (
            ("recall", "--attention", "softmax", "--search", "2"),
            "search_fraction must be above 0 and at most 1, got 2.0",
        ),
        (("recall", "--attention", "softmax", "--rates", "fast"), "--rates 'fast': expected numbers"),
        (("recall", "--attention", "softmax", "--steps", "2", "--minutes", "1"), "give one of them"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, message):
    text = qkv("compare", *arguments, code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1
