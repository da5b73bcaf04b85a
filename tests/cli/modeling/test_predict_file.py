"""`qkv predict RUN --in FILE --out FOLDER`: a large file in parts."""

import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from qkv.cli import main
from qkv.errors import QkvWarning
from qkv.inference.seq2seq_predictor import Seq2SeqPredictor
from tests.cli.run import ROOT, qkv
from tests.cli.run import run as run_qkv
from tests.inference.jobs.words import outputs
from tests.train.processes import finish, job, wait_for
from tests.web.runs import train, train_recall

WORDS = [f"{number:012b}".replace("0", "a").replace("1", "b") for number in range(0, 4096, 45)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--", "qkv"]


def train_words(folder):
    """Words of 12 letters; the model has learned next to nothing."""
    (folder / "words.tsv").write_text("".join(f"{word}\t{word[0].upper()} {word[5].upper()}\n" for word in WORDS))
    changes = {
        "model": {"family": "recurrent", "dim": 8, "max_length": 8},
        "train": {"steps": 2, "batch_size": 16, "validate_every": 2},
        "data": {"train_file": str(folder / "words.tsv")},
    }
    train(folder / "run", "pairs", changes)


@pytest.fixture(scope="module")
def run(build_once):
    return build_once("words-of-two-letters", train_words) / "run"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word}\n" for word in WORDS))
    return path


def rows_of(folder):
    texts = [path.read_bytes().decode() for path in sorted(folder.glob("part-*.tsv"))]
    return [row for text in texts for row in list(csv.reader(io.StringIO(text, newline=""), delimiter="\t"))[1:]]


def test_a_file_has_the_answers_that_stdin_has(run, source, tmp_path):
    said = qkv("predict", str(run), "--in", str(source), "--out", str(tmp_path / "out"), "--part-lines", "40")
    assert re.sub(r"[\d,]+ lines/s", "N lines/s", said) == (
        f"92 of 92 lines predicted: {tmp_path / 'out'}; parts: 3, N lines/s\n"
    )
    expected = [line.split("\t") for line in qkv("predict", str(run), stdin=source.read_bytes()).splitlines()]
    assert [row[1:3] for row in rows_of(tmp_path / "out")] == expected
    assert [row[0] for row in rows_of(tmp_path / "out")] == [str(number) for number in range(1, 93)]


def test_lines_without_an_answer_are_exit_code_3_and_recorded(run, tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"\xef\xbb\xbf" + WORDS[0].encode() + b"\r\n\n" + b"a" * 2**20 + b"\nab\xff")
    options = ("--in", str(tmp_path / "odd.txt"), "--out", str(tmp_path / "out"))
    done = run_qkv("predict", str(run), *options)
    assert done.code == 3
    assert done.stdout.startswith("2 of 4 lines predicted, 1 without an answer, 1 blank: ")
    assert done.stderr == "qkv: 'ab\ufffd' has '\ufffd', which the model has never seen\n"
    assert [row[:2] + row[4:] for row in rows_of(tmp_path / "out")] == [
        ["1", WORDS[0], ""],
        ["2", "", ""],
        ["3", "", "line 3 is longer than 100,000 bytes"],
        ["4", "ab\ufffd", ""],
    ]
    again = run_qkv("predict", str(run), *options)
    assert (again.code, again.stderr) == (3, "")


def test_warnings_are_printed_twenty_times(run, tmp_path):
    (tmp_path / "odd.txt").write_text("z\n" * 50)
    done = run_qkv("predict", str(run), "--in", str(tmp_path / "odd.txt"), "--out", str(tmp_path / "out"))
    lines = done.stderr.splitlines()
    assert (len(lines), lines[-1]) == (21, "qkv: 30 more warnings are not shown")


def test_the_summary_as_json_has_stable_keys(run, source, tmp_path):
    options = ("--in", str(source), "--out", str(tmp_path / "out"), "--part-lines", "50", "--format", "jsonl", "--json")
    first, second = (json.loads(qkv("predict", str(run), *options)) for _ in range(2))
    assert first.pop("seconds") > 0
    assert first.pop("lines_per_second") > 0
    counts = {"lines": 92, "answered": 92, "failed": 0, "blank": 0, "parts": 2}
    assert first == {"folder": str(tmp_path / "out"), **counts, "parts_before": 0}
    assert (second["parts_before"], second["lines_per_second"]) == (2, 0)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == {"format": 2, **counts}
    objects = [json.loads(line) for line in (tmp_path / "out" / "part-000001.jsonl").read_text().splitlines()]
    assert [one["line"] for one in objects] == list(range(51, 93))
    assert set(objects[0]) == {"line", "input", "answers", "error"}


def test_sampled_answers_depend_on_the_line_alone(run, source, tmp_path):
    sampled = ("--search", "sample", "--temperature", "9", "--in", str(source))
    qkv("predict", str(run), *sampled, "--out", str(tmp_path / "small"), "--part-lines", "7")
    qkv("predict", str(run), *sampled, "--out", str(tmp_path / "large"))
    answers = [[row[2] for row in rows_of(tmp_path / name)] for name in ("small", "large")]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5


@pytest.fixture
def threads_seen(monkeypatch):
    """The number of threads at each batch; the process starts with three."""
    seen, before, real = [], torch.get_num_threads(), Seq2SeqPredictor.predict

    def predict(self, *given):
        seen.append(torch.get_num_threads())
        return real(self, *given)

    monkeypatch.setattr(Seq2SeqPredictor, "predict", predict)
    torch.set_num_threads(3)
    yield seen
    torch.set_num_threads(before)


def test_a_job_has_one_thread_unless_it_is_given_more(run, source, tmp_path, threads_seen):
    qkv("predict", str(run), "--in", str(source), "--out", str(tmp_path / "one"))
    qkv("predict", str(run), "--in", str(source), "--out", str(tmp_path / "two"), "--threads", "2")
    assert threads_seen == [1, 2]


def test_bad_input_another_run_or_option_is_refused(run, source, tmp_path):
    options = ("--in", str(source), "--out", str(tmp_path / "out"))
    qkv("predict", str(run), *options)
    said = qkv("predict", str(run), *options, "--best", "2", code=2)
    assert "was started with --best 1, and this command has --best 2; give --out another folder" in said
    said = qkv("predict", str(run), *options, "--threads", "2", code=2)
    assert "was started with --threads 1, and this command has --threads 2" in said
    said = qkv("predict", str(run), *options, "--with", str(run), code=2)
    assert "the job in this folder was started with another run, or its weights have changed since" in said


def test_bad_input_of_a_job(run, source, tmp_path):
    given = ("predict", str(run), "--in", str(source), "--out", str(tmp_path / "out"))
    refused = {
        (*given[:2], "--in", str(source)): f"--in {source} needs --out FOLDER for the parts",
        (*given, "aab"): f"--in {source} and 'aab' are two inputs; give one of them",
        (*given, "--part-lines", "0"): "--part-lines must be at least 1, got 0",
        (*given, "--threads", "0"): "--threads must be 1 to 256, got 0",
        (*given, "--format", "tsvv"): "unknown format 'tsvv'; did you mean 'tsv'? (there are: jsonl, tsv)",
        (*given, "--min-score", "0.3"): "--min-score is for runs of task detect",
        (*given[:4], "--out", "a.tsv"): "--out a.tsv: with --in it is a folder of parts; to write one file: "
        f"qkv predict RUN --out a.tsv < {source}",
        (*given[:4], "--out", str(source)): f"words.txt is a file, but a folder is expected, in {tmp_path}",
        (*given[:3], str(tmp_path), *given[4:]): f"{tmp_path.name} is a folder, but a file is expected, in "
        f"{tmp_path.parent}",
        (*given[:3], str(tmp_path / "word.txt"), *given[4:]): f"there is no file word.txt, in {tmp_path}; did you mean "
        "words.txt?",
        (*given[:2], "aab", "--part-lines", "3"): "--part-lines 3 has no effect: it is for large files, with --in FILE",
        (*given[:2], "aab", "--format", "tsv"): "--format tsv has no effect: it is for large files, with --in FILE",
        (*given[:2], "aab", "--threads", "1"): "--threads 1 has no effect: it is for large files, with --in FILE",
    }
    assert {command: qkv(*command, code=2) for command in refused} == {
        command: f"qkv: {sentence}\n" for command, sentence in refused.items()
    }
    assert not (tmp_path / "out").exists()


def test_bad_input_a_run_that_takes_no_text(source, tmp_path):
    recall = train_recall(tmp_path)
    said = qkv("predict", str(recall), "--in", str(source), "--out", str(tmp_path / "out"), code=2)
    assert "is a run of task 'recall', which takes no text input" in said


def test_bad_input_a_run_of_pictures(source, tmp_path):
    changes = {"train": {"steps": 1, "validate_every": 1}, "data": {"size": 32, "train_scenes": 2, "valid_scenes": 1}}
    with pytest.warns(QkvWarning, match="anchors"):
        folder = train(tmp_path / "boxes", "detect", changes)
    said = qkv("predict", str(folder), "--in", str(source), "--out", str(tmp_path / "out"), code=2)
    assert said == f"qkv: --in {source}: this run reads pictures; name them, or their folder, as INPUT\n"


def test_each_line_is_a_prompt_of_a_text_run(tmp_path):
    """One that is too long has an error; as an argument it would end the command."""
    changes = {
        "model": {"dim": 8, "heads": 2, "hidden_dim": 8, "layers": 1, "max_length": 16},
        "train": {"steps": 1, "batch_size": 4, "warmup": 1, "validate_every": 1},
        "data": {"size": 300, "length": 16},
    }
    folder = train(tmp_path / "text", "text", changes)
    (tmp_path / "prompts.txt").write_text("ab\n\n" + "a" * 5000 + "\nc\n")
    options = ("--in", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "out"), "--tokens", "3")
    done = run_qkv("predict", str(folder), *options)
    assert done.code == 3
    assert done.stdout.startswith("2 of 4 lines predicted, 1 without an answer, 1 blank: ")
    rows = rows_of(tmp_path / "out")
    assert [(row[0], bool(row[2]), bool(row[4])) for row in rows] == [
        ("1", True, False),
        ("2", False, False),
        ("3", False, True),
        ("4", True, False),
    ]


def test_the_bundled_model_has_a_name(tmp_path):
    (tmp_path / "words.txt").write_text("hello\n")
    qkv("predict", "pronounce", "--in", str(tmp_path / "words.txt"), "--out", str(tmp_path / "out"))
    assert [row[:3] for row in rows_of(tmp_path / "out")] == [["1", "hello", "HH EH1 L OW0"]]


def predict(folder, values, _):
    """Run the command in a process of its own, as rank 0 or 1 of 2."""
    os.environ.update(RANK=str(values["rank"]), WORLD_SIZE="2", LOCAL_RANK=str(values["rank"]))
    log = os.open(f"{folder}-{values['rank']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["qkv", *arguments(values["run"], values["source"], folder)]
    main()


def arguments(run, source, folder):
    return ["predict", str(run), "--in", str(source), "--out", str(folder), "--part-lines", "4"]


def ranks(run, source):
    return [{"run": str(run), "source": str(source), "rank": rank} for rank in (0, 1)]


def test_two_processes_write_the_files_that_one_writes_and_one_prints(run, source, tmp_path):
    qkv(*arguments(run, source, tmp_path / "whole"))
    first, second = ranks(run, source)
    with job(tmp_path / "out", second, target=predict) as process:
        finish(tmp_path / "out", first, target=predict)
        process.join(60)
        assert process.exitcode == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    assert (tmp_path / "out-0.log").read_text().startswith("92 of 92 lines predicted: ")
    assert (tmp_path / "out-1.log").read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_abandons_the_piece_and_says_how_to_continue(run, source, tmp_path, number):
    source.write_text(source.read_text() * 3)
    folder, (first, _) = tmp_path / "out", ranks(run, source)
    with job(folder, first, target=predict) as process:
        wait_for(lambda: len(list(folder.glob("part-??????.tsv"))) >= 3, process)
        os.kill(process.pid, number)
        process.join(60)
        assert process.exitcode == 128 + number
    name = signal.Signals(number).name
    assert (tmp_path / "out-0.log").read_text() == (
        f"qkv: stopped by {name}: complete parts stay; the same command continues\n"
    )
    assert not list(folder.rglob("*.tmp-*"))
    assert 3 <= len(list(folder.glob("part-*"))) < 69
    finish(folder, first, target=predict)
    qkv(*arguments(run, source, tmp_path / "whole"))
    assert outputs(folder) == outputs(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.alone
def test_torchrun_killed_at_random_moments_and_started_again(run, source, tmp_path):
    """One rank is killed, then torchrun with all ranks; the third start comes to the end."""
    source.write_text(source.read_text() * 5)
    qkv(*arguments(run, source, tmp_path / "whole"))
    folder, draw = tmp_path / "out", random.Random(3)
    for killed in ("rank", "all"):
        process = start_torchrun(run, source, folder)
        parts = len(list(folder.glob("part-??????.tsv"))) + draw.randint(1, 30)
        while len(list(folder.glob("part-??????.tsv"))) < parts:
            assert process.poll() is None
            time.sleep(0.002)
        if killed == "rank":
            os.kill(draw.choice(children(process.pid)), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) != 0
        assert len(list(folder.glob("part-??????.tsv"))) < 115
    assert start_torchrun(run, source, folder).wait(120) == 0
    assert outputs(folder) == outputs(tmp_path / "whole")
    assert not list(folder.rglob("*.tmp-*"))


def start_torchrun(run, source, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TORCHRUN, *arguments(run, source, folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def children(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(child) for child in file.read().split()]
