"""What `qkv eval --test-file` says of a file that it cannot take, or not all of."""

from tests.cli.run import qkv
from tests.cli.run import run as run_qkv

ONE_STEP = ("--steps", "1", "--set", "model.dim=16", "--set", "model.heads=2", "--set", "model.hidden_dim=16", "--json")


def test_a_task_that_reads_no_file_refuses_one(tmp_path):
    run, file = tmp_path / "recall", tmp_path / "any.txt"
    qkv("train", "recall", "--run", str(run), *ONE_STEP)
    said = qkv("eval", str(run), "--test-file", str(file), code=2)
    assert said == f"qkv: --test-file {file}: the task recall reads no file\n"


def test_bad_lines_of_pairs_are_told(tmp_path):
    run, train, test = tmp_path / "pairs", tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(f"{number}\t{number}\n" for number in range(100, 200)))
    test.write_text("123\t123\nno target\n")
    qkv("train", "pairs", "--train-file", str(train), "--run", str(run), *ONE_STEP)
    done = run_qkv("eval", str(run), "--test-file", str(test))
    assert done.code == 0
    assert done.stderr.startswith(f"qkv: skipped: {test}:2: ")


def test_tokens_that_training_never_had_are_told(tmp_path):
    run, train, test = tmp_path / "pairs", tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(f"{number}a\tx y\n" for number in range(100, 200)))
    test.write_text("123A\tx\n\u03b1\u03b2\u03b21\tx z\n\u03b2\ty x\n")
    qkv("train", "pairs", "--train-file", str(train), "--run", str(run), *ONE_STEP)
    said = run_qkv("eval", str(run), "--test-file", str(test)).stderr
    assert said.splitlines() == [
        "qkv: 2 of 3 test sources have tokens that the training data does not have: '\u03b2', '\u03b1'",
        "qkv: 1 of 3 test targets have tokens that the training data does not have: 'z'",
    ]
    test.write_text("".join(f"{chr(0x3B1 + number)}\tx\n" for number in range(10)))
    assert run_qkv("eval", str(run), "--test-file", str(test)).stderr.endswith(" and 2 more\n")


def test_progress_is_shown_in_a_terminal_only(tmp_path, monkeypatch):
    run, file = tmp_path / "pairs", tmp_path / "train.tsv"
    file.write_text("".join(f"{number}\tx\n" for number in range(100, 200)))
    trained = run_qkv("train", "pairs", "--train-file", str(file), "--run", str(run), *ONE_STEP)
    assert "training done; evaluating on the validation split" in trained.stderr
    plain = run_qkv("eval", str(run), "--split", "valid")
    assert plain.stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for a terminal
    shown = run_qkv("eval", str(run), "--split", "valid", "--json")
    assert "evaluating" in shown.stderr
    assert "1/1" in shown.stderr
    assert "evaluating" not in shown.stdout


def test_bad_input_of_a_split_names_the_nearest(tmp_path):
    text = qkv("eval", str(tmp_path), "--split", "vaild", code=2)
    assert "unknown split 'vaild'; did you mean 'valid'?" in text
