"""From points to a class, as a user goes."""

import json
import subprocess

import numpy
import pytest

from tests.cli.run import COMMAND, ROOT, qkv
from tests.cli.run import run as run_qkv
from tests.tasks.test_digits import bars


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "xor"
    out = qkv("train", "xor", "--run", str(folder), "--json")
    return folder, json.loads(out)


def test_train_learns_xor(run):
    folder, result = run
    assert result["run"] == str(folder)
    assert result["parameters"] == 2 * 2 + 2 + 2 + 1
    assert result["figures"]["test"]["accuracy"] == 1.0


def test_eval_has_a_confusion_matrix(run):
    found = json.loads(qkv("eval", str(run[0]), "--json"))
    assert found["accuracy"] == 1.0
    assert found["confusion_matrix"] == [[2, 0], [0, 2]]
    assert "confusion matrix" in qkv("eval", str(run[0]))


def test_eval_on_another_file(run, tmp_path):
    (tmp_path / "points.csv").write_text("0,0,1\n1,1,0\n")
    found = json.loads(qkv("eval", str(run[0]), "--test-file", str(tmp_path / "points.csv"), "--json"))
    assert found["accuracy"] == 0.5
    assert found["confusion_matrix"] == [[1, 0], [1, 0]]


def test_decode_gives_classes_and_probabilities(run):
    (found,) = json.loads(qkv("predict", str(run[0]), "0,1", "--best", "2", "--json"))
    assert [answer["text"] for answer in found["answers"]] == ["1", "0"]
    assert sum(answer["probability"] for answer in found["answers"]) == pytest.approx(1)
    assert found["answers"][0]["probability"] > 0.9
    assert qkv("predict", str(run[0]), "1 1") == "1 1\t0\n"


def test_names_of_classes_are_written_as_they_are(tmp_path):
    names = ("[/a]", "[note]b")
    (tmp_path / "points.csv").write_text("".join(f"{n},{n % 3},{names[n % 2]}\n" for n in range(60)))
    files = ("--train-file", str(tmp_path / "points.csv"), "--run", str(tmp_path / "run"))
    qkv("train", "xor", "--preset", "wide", *files, "--steps", "2")
    table = qkv("eval", str(tmp_path / "run"))
    assert all(table.count(name) == 2 for name in names)


@pytest.mark.parametrize("best", ["0", "-3"])
@pytest.mark.parametrize("command", [("eval",), ("predict", "0,1")])
def test_fewer_answers_than_one_are_refused(run, command, best):
    name, *inputs = command
    said = qkv(name, str(run[0]), *inputs, "--best", best, code=2)
    assert said == f"qkv: --best must be at least 1, got {best}\n"


def decode_stdin(folder, given, *options):
    """Return (stdout, stderr) of `qkv predict`, in which some input has no answer."""
    done = run_qkv("predict", str(folder), *options, stdin=given)
    assert done.code == 3, done.stderr
    return done.stdout, done.stderr


def test_a_bad_line_stops_no_other(run):
    """A mark of byte order and the ends of lines are no part of an input."""
    given = b"\xef\xbb\xbf0,1\r\nx,1\n\n0\n\xff,1\n1,1\n"
    lines, told = decode_stdin(run[0], given)
    assert lines == "0,1\t1\n1,1\t0\n"
    bad = [
        "'x' in 'x,1' is not a finite number",
        "'0' has 1 values, but the model takes 2",
        "'\ufffd' in '\ufffd,1' is not a finite number",
    ]
    assert told.splitlines() == [f"qkv: {sentence}" for sentence in bad]
    records = json.loads(decode_stdin(run[0], given, "--json")[0])
    assert [record["error"] for record in records] == [None, *bad, None]
    assert [len(record["answers"]) for record in records] == [1, 0, 0, 0, 1]


def test_numbers_beyond_any_answer_are_told(tmp_path):
    """Too large for float32, and so large that the model overflows."""
    (tmp_path / "points.csv").write_text("".join(f"{n},{n % 3},{'ab'[n % 2]}\n" for n in range(60)))
    files = ("--train-file", str(tmp_path / "points.csv"), "--run", str(tmp_path / "run"))
    qkv("train", "xor", "--preset", "wide", *files, "--steps", "20")
    found = json.loads(qkv("predict", str(tmp_path / "run"), "1e300 1", "3e38 -3e38", "1 1", "--json", code=3))
    assert [record["error"] for record in found] == [
        "'1e300' in '1e300 1' is outside the range of float32, +-3.4e+38",
        "'3e38 -3e38' has values too large for a finite prediction",
        None,
    ]
    assert [len(record["answers"]) for record in found] == [0, 0, 1]


@pytest.mark.process
def test_a_closed_stdin_has_no_lines(run):
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "predict", str(run[0])]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_bad_input_is_one_sentence(run, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("0,0,a\n0,?,b\n")
    bad = qkv("train", "xor", "--train-file", str(path), "--run", str(tmp_path / "run"), code=2)
    assert bad == f"qkv: line 2: '?' in column 2 is not a finite number, in {path}\n"
    impossible = ("train", "xor", "--set", "model.family=convolutional", "--run", str(tmp_path / "run"))
    assert "a convolutional network needs images" in qkv(*impossible, code=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_sweep_of_learning_rates_in_one_command(tmp_path):
    (pictures, labels), path = bars(60), tmp_path / "bars.npz"
    numpy.savez(path, train_images=pictures, train_labels=labels)
    models = "convolutional,convolutional:downsample=stride,network:layers=0"
    options = (
        "--train-file",
        str(path),
        "--steps",
        "20",
        "--set",
        "train.validate_every=10",
        "--out",
        str(tmp_path / "out"),
    )
    sweep = ("compare", "digits", "--models", models, "--rates", "0.1,0.01,0.001", *options)
    records = json.loads(qkv(*sweep, "--json"))
    assert [[one["rate"] for one in record["rates"]] for record in records] == [[0.001, 0.01, 0.1]] * 3
    assert all(record["figures"]["accuracy"]["mean"] >= 0.5 for record in records)
    assert records[2]["multiplications"] == 11 * 11 * 3
    assert records[2]["parameters"] == 11 * 11 * 3 + 3
    assert "held-out score (lower is better) by learning rate" in qkv(*sweep)
    assert "bytes of state" not in (tmp_path / "out" / "compare.svg").read_text()
