import pytest

from qkv import runs, tasks
from qkv.tasks.seq2seq_report import example_answers, extra_losses


@pytest.mark.parametrize(("target", "right"), [("characters", ["ABAB", "b a"]), ("words", ["ABAB", "b a"])])
def test_answers_and_what_is_right_are_written_alike(tmp_path, target, right):
    path = tmp_path / "pairs.tsv"
    path.write_text("abab\tABAB\tb a\nba\tBA\n")
    job = tasks.tasks["pairs"].load({"train_file": str(path), "target": target, "held_out": 0})
    config = runs.configure("pairs", runs.preset("pairs", "quick"), {"train": {"steps": 1}})
    (example,) = example_answers(job, runs.build(config, job).eval(), job.data.splits["train"][:1])
    assert example.references == right
    assert all((" " in answer.text) == (target == "words") for answer in example.answers if len(answer.text) > 4)


@pytest.mark.parametrize(
    ("smoothing", "teachers", "expected"),
    [
        (0.0, "", ""),
        (0.1, "", "label smoothing 0.1"),
        (0.0, "runs/a,runs/b", "teachers"),
        (0.25, "runs/a", "label smoothing 0.25 and teachers"),
    ],
)
def test_what_sets_the_training_loss_apart(smoothing, teachers, expected):
    assert extra_losses(smoothing, teachers) == expected
