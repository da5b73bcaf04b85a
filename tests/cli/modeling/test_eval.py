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
