"""Jobs from beginning to end: answers, order, what is left after a stop, and who may continue."""

import csv
import io
import json
import os
import random
import shutil
import time
import warnings
from itertools import chain
from pathlib import Path

import pytest

from qkv.errors import QkvError, QkvWarning
from qkv.inference.jobs import BatchJob, JobSettings, open_job
from tests.inference.jobs.words import SETTINGS, Capitals, outputs, run_job
from tests.train.processes import job as process_of
from tests.train.processes import wait_for

LINES = [f"word{number}" for number in range(17)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(LINES))
    return path


def rows_of(folder):
    texts = [path.read_bytes().decode() for path in sorted(folder.glob("part-*.tsv"))]
    tables = [list(csv.reader(io.StringIO(text, newline=""), delimiter="\t")) for text in texts]
    assert {tuple(table[0]) for table in tables} == {("line", "input", "answer", "probability", "error")}
    return [row for table in tables for row in table[1:]]


def test_each_line_has_its_answer_in_order(source, tmp_path):
    """Parts of 5 lines; batches of 4 and 1 within a part."""
    summary = run_job(tmp_path / "out", source)
    assert summary.to_record() == {"lines": 17, "answered": 17, "failed": 0, "blank": 0, "parts": 4}
    first_of_batch = [LINES[n - n % 5 + (4 if n % 5 == 4 else 0)] for n in range(17)]
    expected = [[str(n + 1), LINES[n], f"WORD{n} {n} {first_of_batch[n]}", "0.5", ""] for n in range(17)]
    assert rows_of(tmp_path / "out") == expected
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["job.json", *(f"part-00000{n}.tsv" for n in range(4)), "state", "summary.json"]


def test_blank_and_bad_lines_keep_their_place(tmp_path):
    source = tmp_path / "words.txt"
    source.write_bytes(b"a\n\nb!\n  \n" + b"x" * 100_001 + b"\nc\td\n")
    summary = run_job(tmp_path / "out", source, part_lines=4)
    assert summary.to_record() == {"lines": 6, "answered": 2, "failed": 2, "blank": 2, "parts": 2}
    assert rows_of(tmp_path / "out") == [
        ["1", "a", "A 0 a", "0.5", ""],
        ["2", "", "", "", ""],
        ["3", "b!", "", "", "'b!' is too loud"],
        ["4", "  ", "", "", ""],
        ["5", "", "", "", "line 5 is longer than 100,000 bytes"],
        ["6", "c\td", "C\tD 5 c\td", "0.5", ""],
    ]


def test_parts_of_objects(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb!\n\u00e9\u2028\n")
    run_job(tmp_path / "out", tmp_path / "words.txt", form="jsonl")
    text = (tmp_path / "out" / "part-000000.jsonl").read_text()
    assert [json.loads(line) for line in text.split("\n")[:-1]] == [
        {"line": 1, "error": None, "input": "a", "answers": [{"text": "A 0 a", "probability": 0.5}]},
        {"line": 2, "error": "'b!' is too loud", "input": "b!", "answers": []},
        {
            "line": 3,
            "error": None,
            "input": "\u00e9\u2028",
            "answers": [{"text": "\u00c9\u2028 2 a", "probability": 0.5}],
        },
    ]


def test_an_empty_input_is_a_complete_job(tmp_path):
    (tmp_path / "words.txt").touch()
    summary = run_job(tmp_path / "out", tmp_path / "words.txt")
    assert summary.to_record() == {"lines": 0, "answered": 0, "failed": 0, "blank": 0, "parts": 0}


def test_a_job_that_broke_off_continues_where_it_stopped(source, tmp_path):
    run_job(tmp_path / "whole", source)
    with pytest.raises(RuntimeError, match="power is off"):
        run_job(tmp_path / "out", source, Capitals(fail_at="word11"))
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == ["part-000000.tsv", "part-000001.tsv"]
    second = Capitals()
    run_job(tmp_path / "out", source, second)
    assert second.seen == LINES[10:]
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    third = Capitals()
    run_job(tmp_path / "out", source, third)
    assert third.seen == []


def test_a_part_without_its_record_is_predicted_again(source, tmp_path):
    """As after a kill between the two writes; and so is one that was deleted."""
    run_job(tmp_path / "out", source)
    expected = outputs(tmp_path / "out")
    (tmp_path / "out" / "state" / "000001.json").unlink()
    (tmp_path / "out" / "part-000001.tsv").write_text("half")
    (tmp_path / "out" / "part-000003.tsv").unlink()
    again = Capitals()
    run_job(tmp_path / "out", source, again)
    assert again.seen == [*LINES[5:10], *LINES[15:]]
    assert outputs(tmp_path / "out") == expected


def test_a_part_that_was_changed_is_an_error(source, tmp_path):
    run_job(tmp_path / "out", source)
    with (tmp_path / "out" / "part-000002.tsv").open("a") as file:
        file.write("more\n")
    with pytest.raises(QkvError, match=r"part-000002\.tsv was changed after it was written; delete it"):
        run_job(tmp_path / "out", source)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": "4567"}, "was started with another run, or its weights have changed since"),
        ({"part_lines": 6}, "was started with --part-lines 5, and this command has --part-lines 6"),
        ({"form": "jsonl"}, "was started with --format tsv, and this command has --format jsonl"),
        (
            {"options": {"search": "beam", "seed": 0}},
            "was started with no --search, and this command has --search beam",
        ),
        ({"options": {"search": None, "seed": 1}}, "was started with --seed 0, and this command has --seed 1"),
    ],
)
def test_bad_input_another_job_is_refused_and_nothing_is_lost(source, tmp_path, changed, message):
    run_job(tmp_path / "out", source)
    before = outputs(tmp_path / "out")
    with pytest.raises(QkvError, match=message) as caught:
        run_job(tmp_path / "out", source, **changed)
    assert "give --out another folder for a new job" in str(caught.value)
    assert outputs(tmp_path / "out") == before


def test_bad_input_another_input_is_refused(source, tmp_path):
    run_job(tmp_path / "out", source)
    other = tmp_path / "other.txt"
    other.write_text(source.read_text() + "\n")
    size = source.stat().st_size
    with pytest.raises(QkvError, match=f"an input of {size} bytes, and other.txt has {size + 1}; give --out"):
        run_job(tmp_path / "out", other)
    other.write_text(source.read_text().replace("word3", "word4"))
    with pytest.raises(QkvError, match="whose contents differ from those of other.txt"):
        run_job(tmp_path / "out", other)


def test_a_copy_of_the_input_continues_the_job(source, tmp_path):
    with pytest.raises(RuntimeError, match="power is off"):
        run_job(tmp_path / "out", source, Capitals(fail_at="word11"))
    copy = tmp_path / "copy.txt"
    shutil.copy(source, copy)
    os.utime(copy, ns=(0, 0))
    assert run_job(tmp_path / "out", copy).lines == 17


def test_bad_input_a_folder_with_other_files_is_refused(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(QkvError, match=r"the folder has other files, such as thesis\.tex, and no job\.json"):
        run_job(tmp_path / "out", source)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_bad_input_too_many_parts(source, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.inference.jobs.job_folder.MAX_PARTS", 3)
    with pytest.raises(QkvError, match="--part-lines 5 makes 4 parts, but a job has at most 3; give --part-lines 6 or"):
        run_job(tmp_path / "out", source)


def test_other_conditions_are_a_warning(source, tmp_path):
    settings = JobSettings(**SETTINGS, part_lines=5)
    folder, _ = open_job(tmp_path / "out", source, settings, {"torch": "1", "cpu": "a"})
    folder.close()
    with pytest.warns(QkvWarning, match=r"^torch \(1, now 2\) changed since the job in .*out was started: the last"):
        open_job(tmp_path / "out", source, settings, {"torch": "2", "cpu": "a"})[0].close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_job(tmp_path / "out", source, settings, {"torch": "1", "cpu": "a"})[0].close()


def test_progress_counts_complete_parts_and_the_lines_of_the_part_at_work(source, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.inference.jobs.batch_job.REPORT_SECONDS", -1.0)
    folder, lines = open_job(tmp_path / "out", source, JobSettings(**SETTINGS, part_lines=5))
    seen = []
    BatchJob(folder, lines, Capitals()).run(seen.append)
    folder.close()
    assert seen == [4, 5, 9, 10, 14, 15, 17]


def share(folder, values, _):
    """Work on a job in a process of its own, together with others that have begun; note what was predicted."""
    predictor, begun = Capitals(values["seconds"]), Path(f"{folder}-{os.getpid()}")
    begun.touch()
    while len(list(begun.parent.glob(f"{Path(folder).name}-*"))) < values["processes"]:
        time.sleep(0.001)
    run_job(folder, values["source"], predictor, part_lines=values["part_lines"])
    begun.write_text("\n".join(predictor.seen))


def values_of(source, processes, seconds, part_lines=1):
    return {"source": str(source), "processes": processes, "seconds": seconds, "part_lines": part_lines}


def test_two_processes_share_the_parts(source, tmp_path):
    """Both predict some of the parts, and no part is predicted twice."""
    folder, values = tmp_path / "out", values_of(source, 2, 0.02)
    run_job(tmp_path / "whole", source, part_lines=1)
    with process_of(folder, values, target=share) as one, process_of(folder, values, target=share) as two:
        one.join(60)
        two.join(60)
        assert (one.exitcode, two.exitcode) == (0, 0)
    assert outputs(folder) == outputs(tmp_path / "whole")
    seen = [path.read_text().split("\n") for path in tmp_path.glob("out-*")]
    assert min(map(len, seen)) > 1
    assert sorted(chain.from_iterable(seen)) == sorted(LINES)


def test_a_piece_of_a_running_process_is_left_to_it_and_taken_over_when_it_dies(source, tmp_path):
    run_job(tmp_path / "whole", source)
    with process_of(tmp_path / "out", values_of(source, 1, 60, part_lines=5), target=share) as process:
        wait_for(lambda: list((tmp_path / "out").glob("part-000000.tsv.tmp-*")), process)
        folder, lines = open_job(tmp_path / "out", source, JobSettings(**SETTINGS, part_lines=5))
        with folder.claim(0) as first, folder.claim(1) as second:
            assert (first, second) == (False, True)
        process.kill()
        process.join()
        job = BatchJob(folder, lines, Capitals())
        job.run()
        job.finish()
        folder.close()
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    assert not list((tmp_path / "out").glob("*.tmp-*"))


@pytest.mark.slow
def test_10_of_10_jobs_survive_kill_9_of_one_process_and_of_all(source, tmp_path):
    """Two processes; every second time both are killed and two others continue."""
    run_job(tmp_path / "whole", source, part_lines=1)
    expected, draw = outputs(tmp_path / "whole"), random.Random(5)
    values, unfinished = values_of(source, 2, 0.03), 0
    for trial in range(10):
        folder = tmp_path / str(trial)
        with process_of(folder, values, target=share) as one, process_of(folder, values, target=share) as two:
            parts = draw.randint(0, 11)
            wait_for(lambda there=folder, many=parts: len(list(there.glob("part-??????.tsv"))) >= many, one)
            time.sleep(draw.uniform(0, 0.05))
            for process in (one, two) if trial % 2 else (one,):
                process.kill()
                process.join()
            unfinished += not (folder / "summary.json").exists()
            two.join(60)
        run_job(folder, source, part_lines=1)
        assert outputs(folder) == expected, trial
        assert not list(folder.rglob("*.tmp-*")), trial
    assert unfinished == 10
