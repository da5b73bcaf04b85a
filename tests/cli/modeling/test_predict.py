"""Answers of a recurrent run to sources of any length and number, as a user asks for them."""

import csv
import json

import pytest

from qkv import runs
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv
from tests.web.runs import train

WORDS = [f"{number:012b}".replace("0", "a").replace("1", "b") for number in range(0, 4096, 45)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Words of 12 letters, whose model writes 8 tokens at most; it has learned next to nothing."""
    folder = tmp_path_factory.mktemp("decode")
    (folder / "words.tsv").write_text("".join(f"{word}\t{word[0].upper()} {word[5].upper()}\n" for word in WORDS))
    changes = {
        "model": {"family": "recurrent", "dim": 8, "max_length": 8},
        "train": {"steps": 2, "batch_size": 16, "validate_every": 2},
        "data": {"train_file": str(folder / "words.tsv")},
    }
    return train(folder / "run", "pairs", changes)


def answers(run, *options):
    records = json.loads(qkv("predict", str(run), *options, "--json"))
    assert all(record["error"] is None for record in records)
    return [record["answers"][0]["text"] for record in records]


def test_a_source_may_be_longer_than_any_answer(run):
    assert len(answers(run, "ab" * 100, "--search", "greedy")) == 1
    assert len(answers(run, "ab" * 100, "--with", str(run))) == 1


def test_a_letter_of_the_other_case_is_taken_as_the_one_that_is_known(run):
    assert answers(run, *(word.upper() for word in WORDS)) == answers(run, *WORDS)


def test_every_line_has_draws_of_its_own(run, monkeypatch):
    """However many are answered together; and one that has no answer changes no other."""
    sampled = ("--search", "sample", "--temperature", "9")
    together = answers(run, *[WORDS[0]] * 10, *sampled)
    monkeypatch.setattr("qkv.inference.Predictor.batch_size", 4)
    assert answers(run, *[WORDS[0]] * 10, *sampled) == together
    assert len(set(together)) > 5
    lines = qkv("predict", str(run), WORDS[0], "\udc80", *[WORDS[0]] * 8, *sampled, code=3).splitlines()
    assert [line.split("\t")[1] for line in lines] == [together[0], *together[2:]]


def test_what_is_drawn_is_never_the_unknown_token(run):
    _, job, _ = runs.load(run)
    found = {
        token for text in answers(run, *WORDS, "--search", "sample", "--temperature", "99") for token in text.split()
    }
    assert found <= set(job.data.targets.tokens)
    assert len(found) > 1


def test_an_input_without_an_answer_is_exit_code_3(run):
    """And the others are answered."""
    done = run_qkv("predict", str(run), WORDS[0], "\udc80")
    assert (done.code, done.stdout.count("\n")) == (3, 1)
    assert done.stderr == "qkv: '\\udc80' is not valid UTF-8\n"
    nothing = run_qkv("predict", str(run), "\udc80", "--json")
    assert (nothing.code, len(json.loads(nothing.stdout))) == (3, 1)
    assert run_qkv("predict", str(run), WORDS[0]).code == 0


def test_predictions_go_to_a_file(run, tmp_path):
    words = (WORDS[0], "a\tb", "\udc80", "--best", "2")
    said = run_qkv("predict", str(run), *words, "--out", str(tmp_path / "answers.tsv"))
    assert said.stdout == f"2 of 3 inputs predicted: {tmp_path / 'answers.tsv'}\n"
    assert said.code == 3
    with (tmp_path / "answers.tsv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    assert rows[0] == ["input", "answer", "probability"]
    assert [row[0] for row in rows[1:]] == [WORDS[0]] * 2 + ["a\tb"] * 2 + ["\\udc80"]
    assert rows[-1][1:] == ["", ""]
    records = json.loads(run_qkv("predict", str(run), *words, "--json").stdout)
    expected = [(one["text"], one["probability"]) for record in records for one in record["answers"]]
    assert [(text, float(probability)) for _, text, probability in rows[1:-1]] == [
        (text, pytest.approx(probability, rel=1e-5)) for text, probability in expected
    ]
    run_qkv("predict", str(run), *words, "--out", str(tmp_path / "answers.json"))
    assert json.loads((tmp_path / "answers.json").read_text()) == records


def test_bad_input_names_of_the_file(run, tmp_path):
    said = qkv("predict", str(run), WORDS[0], "--out", str(tmp_path / "x.csv"), code=2)
    assert said == f"qkv: --out {tmp_path / 'x.csv'}: the name must end in .tsv or .json\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "2"), "--temperature has no effect with --search beam; it needs --search sample"),
        (
            ("--top-k", "2", "--search", "greedy"),
            "--top-k has no effect with --search greedy; it needs --search sample",
        ),
        (("--beams", "9", "--search", "greedy"), "--beams has no effect with --search greedy; it needs --search beam"),
        (("--temperature", "0", "--search", "sample"), "temperature must be finite and above 0, got 0.0"),
        (("--tokens", "3"), "--tokens is for runs of task text"),
    ],
)
def test_bad_input_of_an_option_without_effect_is_an_error_before_any_output(run, options, message):
    done = run_qkv("predict", str(run), WORDS[0], *options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
