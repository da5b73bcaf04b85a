from dataclasses import replace
from pathlib import Path

import pytest

from qkv import runs, tasks
from qkv.compare.trial import Trial, choose_best, open_run
from qkv.errors import QkvError
from qkv.runs.data_hash import hash_training_files, require_same_splits
from qkv.storage import write_json
from tests.tasks.tiny import write_pairs


def test_the_best_on_held_out_data_is_chosen():
    tried = [Trial("a", rate, 0, "a", held_out=score) for rate, score in ((0.1, 0.5), (0.3, 0.2), (0.9, 0.4))]
    assert choose_best(tried).learning_rate == 0.3
    assert choose_best([replace(tried[1], learning_rate=0.7), tried[1]]).learning_rate == 0.3  # the lower of two
    ties = [replace(tried[1], learning_rate=rate) for rate in (0.7, 0.1, 0.3)]
    assert choose_best(ties).learning_rate == 0.3  # the middle of three
    assert choose_best([replace(tried[1], failed="no number"), tried[0]]).learning_rate == 0.1
    assert choose_best([replace(tried[1], held_out=None), tried[0]]).learning_rate == 0.1
    assert choose_best([replace(tried[0], failed="no number")]) is None


def test_the_record_has_the_keys_of_compare_json():
    record = Trial("softmax", 0.01, 3, "softmax/rate-0.01-seed-3").to_record()
    assert [*record][:4] == ["contestant", "rate", "seed", "run"]
    assert record["contestant"] == "softmax"


def test_a_trial_does_not_resume_with_another_file(tmp_path):
    files = write_pairs(tmp_path)
    task = tasks.tasks["pairs"].load(files)
    config = replace(runs.configure("pairs", runs.preset("pairs", None), {}), data=task.options)
    folder = tmp_path / "run"
    for _ in range(2):
        run, _ = open_run(folder, config, task)
    assert run.folder == folder
    with Path(files["test_file"]).open("a") as file:  # the test file may change
        file.write("fed\tD E F\n")
    open_run(folder, config, task)
    with Path(files["train_file"]).open("a") as file:
        file.write("fed\tD E F\n")
    with pytest.raises(QkvError, match=r"train.tsv has changed since the run was started.*choose another --out"):
        open_run(folder, config, task)
    with pytest.raises(QkvError, match=r"has changed .*--test-file"):
        require_same_splits([folder])
    Path(files["train_file"]).unlink()
    require_same_splits([folder])  # reading it will raise


def test_the_hash_of_a_folder_covers_all_its_texts(tmp_path):
    texts, folder = tmp_path / "texts", tmp_path / "run"
    (texts / "more").mkdir(parents=True)
    folder.mkdir()
    for name in ("a.txt", "more/b.txt"):
        (texts / name).write_text("one\n\ntwo\n")
    write_json(folder / "data.json", hash_training_files({"source": str(texts)}))
    require_same_splits([folder])
    (texts / "more/b.txt").rename(texts / "more/c.txt")
    with pytest.raises(QkvError, match=r"texts has changed"):
        require_same_splits([folder])
