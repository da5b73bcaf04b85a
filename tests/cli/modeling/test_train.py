"""From a file to a trained model to an answer, as a user goes."""

import inspect
import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv import runs, tasks
from qkv.cli.shared import progress
from qkv.train import loop
from tests.cli.run import COMMAND, ROOT, qkv
from tests.cli.run import run as run_qkv
from tests.runs.sealing import reseal

SMALL = (
    *(
        "--set",
        "model.dim=32",
        "--set",
        "model.heads=2",
        "--set",
        "model.hidden_dim=32",
        "--set",
        "model.max_length=24",
    ),
    *("--set", "train.batch_size=16", "--set", "train.validate_every=20", "--set", "data.target=characters"),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Digits to their names' first letters: learned in seconds."""
    path = tmp_path_factory.mktemp("data") / "digits.tsv"
    path.write_text("".join(f"{n}\t{''.join('ZOTHFIXSEN'[int(d)] for d in str(n))}\n" for n in range(100, 400)))
    return path


@pytest.fixture(scope="module")
def run(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    out = qkv("train", "pairs", "--train-file", str(file), "--run", str(folder), "--steps", "400", *SMALL, "--json")
    return folder, json.loads(out)


def test_train_reports_its_figures(run):
    folder, result = run
    assert result["run"] == str(folder)
    assert set(result["figures"]) == {"valid greedy", "valid beam 4"}
    assert result["figures"]["valid greedy"]["sequence_error_rate"] < 0.5
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.json",
        "vocabulary.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoints",
        "report.html",
    }
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 400


def test_decode_answers(run):
    folder, _ = run
    assert qkv("predict", str(folder), "123", "321") == "123\tOTH\n321\tHTO\n"
    records = json.loads(qkv("predict", str(folder), "123", "--best", "3", "--json"))
    answers = records[0]["answers"]
    assert [set(answer) for answer in answers] == [{"text", "probability", "score", "finished"}] * 3
    assert answers[0]["probability"] > answers[1]["probability"] > answers[2]["probability"]


def test_decode_takes_lines_of_stdin(run):
    assert qkv("predict", str(run[0]), "--search", "greedy", stdin=b"123\n\n207\n") == "123\tOTH\n207\tTZS\n"


def test_a_line_that_is_too_long_stops_no_other(run):
    done = run_qkv("predict", str(run[0]), stdin=b"\xef\xbb\xbf123\r\n" + b"1" * 5000 + b"\n207\n")
    assert done.code == 3
    assert done.stdout == "123\tOTH\n207\tTZS\n"
    assert done.stderr == "qkv: '111111111111111111111111111111'... has 5000 tokens; the model takes 24\n"


def test_what_a_search_cannot_do_is_refused(run):
    decode = ("predict", str(run[0]), "123")
    assert "--beams must be at least 1, got 0" in qkv(*decode, "--beams", "0", code=2)
    assert "--best 2 needs --search beam: sample gives one answer" in qkv(
        *decode, "--search", "sample", "--best", "2", code=2
    )


def test_targets_that_nobody_cut_are_told_of(file, tmp_path):
    """300 targets of one word each, nearly all different; cut into characters, nothing is said."""
    told = []
    for name, cut in (("whole", ()), ("cut", ("--set", "data.target=characters"))):
        options = ("--run", str(tmp_path / name), "--steps", "1", *SMALL[:-2], *cut)
        told.append(run_qkv("train", "pairs", "--train-file", str(file), *options))
    assert [done.code for done in told] == [0, 0]
    assert "--set data.target=characters" in told[0].stderr
    assert "--set data.target=characters" not in told[1].stderr
    assert f"report:     {tmp_path / 'cut' / 'report.html'}" in told[1].stdout


def test_sampling_is_a_function_of_its_seed(run):
    arguments = ("predict", str(run[0]), "123", "--search", "sample", "--temperature", "3")
    assert qkv(*arguments, "--seed", "1") == qkv(*arguments, "--seed", "1")


def test_eval_on_another_file(run, file):
    figures = json.loads(qkv("eval", str(run[0]), "--test-file", str(file), "--search", "beam", "--json"))
    assert figures["examples"] == 300
    assert figures["sequence_error_rate"] < 0.5


def test_a_run_with_itself_answers_as_alone(run, file):
    """The mean of two equal probabilities."""
    folder, _ = run
    alone, twice = (
        json.loads(qkv("predict", str(folder), "123", "207", "--best", "3", *more, "--json"))
        for more in ((), ("--with", str(folder)))
    )
    assert [[a["text"] for a in r["answers"]] for r in twice] == [[a["text"] for a in r["answers"]] for r in alone]
    assert twice[0]["answers"][0]["probability"] == pytest.approx(alone[0]["answers"][0]["probability"], rel=1e-5)
    figures = json.loads(qkv("eval", str(folder), "--with", str(folder), "--test-file", str(file), "--json"))
    assert figures["sequence_error_rate"] < 0.5
    said = qkv("predict", str(folder), "123", "--with", str(folder.parent / "none"), code=2)
    assert "there is no such run folder" in said


def test_an_unknown_letter_is_named_and_answered(run):
    done = run_qkv("predict", str(run[0]), "1x3")
    assert done.code == 0
    assert "'1x3' has 'x', which the model has never seen" in done.stderr
    assert done.stdout.startswith("1x3\t")


def test_a_run_is_not_overwritten_and_can_go_on(run, file):
    folder, _ = run
    text = qkv("train", "pairs", "--train-file", str(file), "--run", str(folder), "--steps", "5", code=2)
    assert "there is a run already" in text
    weights = (folder / "model.safetensors").read_bytes()
    qkv("train", "pairs", "--run", str(folder), "--resume", "--json")
    assert (folder / "model.safetensors").read_bytes() == weights


def test_a_run_goes_on_as_it_was_set(run, file):
    """Settings that are those of the run may stand there; others, and another task, are named."""
    folder, _ = run
    resume = ("--run", str(folder), "--resume", "--json")
    same = ("--preset", "quick", "--train-file", str(file), "--steps", "400", "--seed", "0", *SMALL)
    assert json.loads(qkv("train", "pairs", *resume, *same))["run"] == str(folder)
    said = qkv("train", "pairs", *resume, "--minutes", "5", "--set", "model.dim=64", "--test-file", "x.tsv", code=2)
    assert "cannot change --set model.dim=64, where the run has 32; --minutes 5.0, where the run has None" in said
    assert "--test-file x.tsv, where the run has None" in said
    said = qkv("train", "xor", *resume, code=2)
    assert "the run has task 'pairs' and cannot be resumed as 'xor'" in said
    assert "did you mean 'quick'" in qkv("train", "pairs", *resume, "--preset", "quik", code=2)


def test_a_run_finds_its_data_from_any_folder(file, tmp_path, monkeypatch):
    folder = str(tmp_path / "run")
    monkeypatch.chdir(file.parent)
    qkv("train", "pairs", "--train-file", file.name, "--run", folder, "--steps", "1", *SMALL, "--json")
    monkeypatch.chdir(tmp_path)
    assert not Path(file.name).exists()
    assert json.loads(qkv("eval", folder, "--split", "valid", "--json"))
    assert json.loads(qkv("train", "pairs", "--run", folder, "--resume", "--json"))["run"] == folder


def test_a_run_does_not_go_on_with_other_data(file, tmp_path):
    """Nor is it judged on a file that has changed, for nobody knows what of it was learned from."""
    mine, folder = tmp_path / "mine.tsv", tmp_path / "run"
    mine.write_text(file.read_text())
    arguments = ("train", "pairs", "--train-file", str(mine), "--run", str(folder), "--steps", "1", *SMALL, "--json")
    qkv(*arguments)
    before = json.loads(qkv("eval", str(folder), "--split", "train", "--json"))
    first, *others = mine.read_text().splitlines()
    mine.write_text("\n".join([*others, first]) + "\n")
    said = qkv("train", "pairs", "--run", str(folder), "--resume", code=2)
    assert (
        f"{mine} has changed since the run was started, so the held-out split cannot be reproduced; start another"
        in said
    )
    assert "pass --test-file" in qkv("eval", str(folder), code=2)
    assert json.loads(qkv("eval", str(folder), "--test-file", str(mine), "--json"))
    (folder / "data.json").unlink()  # a run of an older version
    reseal(folder)
    assert json.loads(qkv("eval", str(folder), "--split", "train", "--json"))["examples"] == before["examples"]


def test_answers_are_judged_with_the_vocabularies_of_the_run(run, file, tmp_path):
    """Not with those of the file as it is now."""
    folder, renamed = tmp_path / "run", tmp_path / "renamed.tsv"
    shutil.copytree(run[0], folder)
    renamed.write_text(file.read_text().translate(str.maketrans("01", "ab")))
    config = json.loads((folder / "config.json").read_text())
    config["data"]["train_file"] = str(renamed)
    (folder / "config.json").write_text(json.dumps(config))
    reseal(folder)
    _, job, _ = runs.load(folder)
    loaded = job.with_data()
    assert loaded.vocabulary() == job.vocabulary() != tasks.tasks["pairs"].load(job.options).vocabulary()
    sources = {token for pair in loaded.data.splits["train"] for token in pair.source}
    assert {"a", "b"} <= sources
    assert not {"0", "1"} & sources


def test_data_with_square_brackets(tmp_path):
    path = tmp_path / "brackets.tsv"
    path.write_text("".join(f"[/{letter}]\t[{letter}] [/red]\n" for letter in "abcdefghijkl"))
    arguments = ("--train-file", str(path), "--test-file", str(path), "--run", str(tmp_path / "run"), "--steps", "1")
    assert "[/" in qkv("train", "pairs", *arguments, *SMALL)


def test_a_loss_that_is_not_finite_is_a_line(tmp_path):
    rates = ("--set", "train.learning_rate=1e38", "--set", "train.max_grad_norm=1e30", "--set", "train.warmup=0")
    said = qkv("train", "xor", "--run", str(tmp_path / "run"), "--steps", "60", *rates, code=2)
    assert "no update: the loss is" in said
    assert "20 updates in a row were not finite" in said


def test_every_event_has_a_line():
    """One that lacks what its line says would end a training."""
    tell = {
        "steps": {"steps": 9},
        "validated": {"score": math.nan, "best": math.inf},
        "resumed": {"exact": True, "changed": {}, "dropped": 0},
        "restarted": {"dropped": 1234},
        "length_changed": {"before": 5},
        "checkpoints_removed": {},
        "not_finite": {"message": "no update", "ids": [1]},
        "damaged_checkpoint": {"message": "cut off"},
        "sealed": {},
        "straggler": {"rank": 1, "own_seconds": 0.25, "others_seconds": 0.1},
    }
    source = inspect.getsource(loop)
    assert set(re.findall(r'"event": "(\w+)"', source)) == set(tell)
    lines = [
        progress._describe_event({"steps": None, "step": 3, "event": event, **more}) for event, more in tell.items()
    ]
    assert "step 3: no update; the ids of its examples are in metrics.jsonl" in lines
    assert "step 3: rank 1 is slow: 0.25 s per step, others 0.1" in lines
    assert any(
        "starting again from step 0; 1,234 lines of metrics.jsonl after it are dropped" in line for line in lines
    )


@pytest.mark.process
def test_two_processes_do_not_train_in_one_folder(run):
    folder, _ = run
    hold = "import sys, pathlib, qkv.train as t\nwith t.Run(pathlib.Path(sys.argv[1])).lock(): print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        said = qkv("train", "pairs", "--run", str(folder), "--resume", code=2)
        other.communicate(b"\n")
    assert "another process is training in this run folder" in said
    assert other.returncode == 0
    qkv("train", "pairs", "--run", str(folder), "--resume", "--json")


@pytest.mark.slow
def test_minutes_measured_before_a_kill_hold_after_it(file, tmp_path):
    """Killed before its first checkpoint, a run begins again, but with the number of steps that it had measured."""
    folder = tmp_path / "run"
    settings = ("--minutes", "0.05", *SMALL, "--set", "train.validate_every=100000")
    arguments = ("train", "pairs", "--train-file", str(file), "--run", str(folder), *settings)

    def steps():
        path = folder / "config.json"
        return json.loads(path.read_text())["train"]["steps"] if path.exists() else None

    process = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)
    while steps() is None:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    measured = steps()
    assert measured > 40
    assert not (folder / "checkpoints").exists()
    qkv("train", "pairs", "--run", str(folder), "--resume", "--json")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, measured + 1))
    assert steps() == measured


def test_bad_lines_are_counted_or_stop_the_run(tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_bytes(b"ab\tA B\nno tab here\n\xff\xfe\tX\nba\tB A\n" * 5)
    arguments = ("train", "pairs", "--train-file", str(path), "--steps", "1", *SMALL)
    done = run_qkv(*arguments, "--run", str(tmp_path / "run"))
    assert done.code == 0, done.stderr
    assert "bad.tsv:2" in done.stderr
    assert "10 lines skipped in all" in done.stderr
    assert "bad.tsv" in qkv(*arguments, "--strict", "--run", str(tmp_path / "strict"), code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pronunce",), "unknown task 'pronunce'; did you mean 'pronounce'"),
        (("pairs",), "needs a file to train on"),
        (("pairs", "--train-file", "no_such.tsv"), "no_such.tsv"),
        (("pairs", "--preset", "quik"), "did you mean 'quick'"),
        (("pairs", "--set", "model.dimm=3"), "did you mean 'dim'"),
        (("pairs", "--set", "dim=3"), "expected model|train|data.NAME=VALUE"),
        (("pairs", "--resume"), "--resume needs --run"),
        (("recall", "--steps", "0"), "steps must be at least 1"),
        (("recall", "--steps", "5", "--minutes", "1"), "--steps 5 and --minutes 1: give one of them"),
        (("recall", "--set", "model.attention=tailor"), "did you mean 'taylor'"),
        (("recall", "--set", "model.positions=t5", "--set", "model.attention=taylor"), "positions 't5'"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, message, tmp_path):
    text = qkv("train", *arguments, *(() if "--resume" in arguments else ("--run", str(tmp_path / "run"))), code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda"), "--device cuda: no CUDA device available"),
        (("--device", "cpu", "--graphs"), "graphs need one process on cuda, got 1 on cpu"),
        (("--workers", "-1"), "workers must be 0 or more, got -1"),
        (("--set", "train.batch_size=1.5"), "batch_size must be a whole number, got 1.5"),
        (("--set", "train.learning_rate=fast"), "learning_rate must be a number, got 'fast'"),
    ],
)
def test_a_start_that_fails_leaves_no_folder(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = tmp_path / "run"
    assert message in qkv("train", "xor", "--steps", "2", "--run", str(folder), *arguments, code=2)
    assert not folder.exists()


def test_wrong_use_of_eval_and_decode(run, tmp_path):
    assert "no such run folder" in qkv("eval", str(tmp_path / "nowhere"), code=2)
    assert "unknown search 'beem'; did you mean 'beam'" in qkv("predict", str(run[0]), "1", "--search", "beem", code=2)
    assert "there are no test pairs" in qkv("eval", str(run[0]), code=2)


def test_a_dry_run_describes_the_training_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"{number}\t{number}\n" for number in range(100, 200)))
    options = (
        "--train-file",
        "pairs.tsv",
        "--lr",
        "0.02",
        "--batch-size",
        "9",
        "--attention",
        "taylor",
        "--steps",
        "50",
    )
    record = json.loads(qkv("train", "pairs", *options, "--dry-run", "--json"))
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]
    settings = {one["name"]: one["value"] for one in record["settings"]}
    assert (settings["train.learning_rate"], settings["train.batch_size"]) == (0.02, 9)
    assert settings["model.attention"] == "taylor"
    assert (record["steps"], record["examples"]) == (50, {"train": 90, "valid": 10})
    assert record["parameters"] > 1000
    assert record["estimated_minutes"] > 0
    text = qkv("train", "pairs", *options, "--dry-run")
    assert "examples:   train 90, valid 10" in text
    assert "steps:      50, 5.0 epochs" in text
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


def test_wrong_meshes_are_refused_before_a_folder_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "unknown mesh axis 'shrd'; did you mean 'shard'?" in qkv("train", "xor", "--mesh", "shrd=2", code=2)
    message = qkv("train", "xor", "--mesh", "shard=2,data=3", "--run", "x", code=2)
    assert "mesh data=3,shard=2,sequence=1 needs 6 processes, got 1; start it with torchrun" in message
    assert "does not split its sequences" in qkv("train", "recall", "--mesh", "sequence=2", "--dry-run", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_the_processes_of_a_mesh():
    options = ("train", "xor", "--mesh", "data=2,shard=2", "--dry-run")
    assert "mesh:       data=2,shard=2,sequence=1: 4 processes of torchrun" in qkv(*options)
    record = json.loads(qkv(*options, "--json"))
    assert (record["mesh"], record["processes"]) == ("data=2,shard=2,sequence=1", 4)


def test_other_ranks_leave_an_error_of_all_to_rank_0(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("qkv.cli.shared.mesh._WAIT_SECONDS", 0)
    assert qkv("train", "xor", "--mesh", "shard=2,data=3", code=2) == ""


def test_bad_input_of_epochs_names_steps():
    assert "give --steps" in qkv("train", "xor", "--epochs", "3", code=2)
    assert "leave out --resume" in qkv("train", "xor", "--run", "x", "--resume", "--dry-run", code=2)
