from dataclasses import replace
from pathlib import Path

import pytest

from qkv import tasks
from qkv.compare.trial import Training, choose, open_run
from qkv.runs.data_hash import note_files, require_judgeable
from qkv.storage import QkvError
from tests.tasks.tiny import write_pairs


def test_the_best_on_held_out_data_is_chosen():
    tried = [Training("a", rate, 0, "a", held_out=score) for rate, score in ((0.1, 0.5), (0.3, 0.2), (0.9, 0.4))]
    assert choose(tried).rate == 0.3
    assert choose([replace(tried[1], rate=0.7), tried[1]]).rate == 0.3  # of two equals the lower
    assert choose([replace(tried[1], rate=rate) for rate in (0.7, 0.1, 0.3)]).rate == 0.3  # of three the middle one
    assert choose([replace(tried[1], failed="no number"), tried[0]]).rate == 0.1
    assert choose([replace(tried[1], held_out=None), tried[0]]).rate == 0.1
    assert choose([replace(tried[0], failed="no number")]) is None


def test_a_training_does_not_go_on_with_another_file(tmp_path):
    files = write_pairs(tmp_path)
    job = tasks.tasks["pairs"].load(files)
    config = replace(tasks.configure("pairs", tasks.preset("pairs", None), {}), data=job.options)
    folder = tmp_path / "run"
    for _ in range(2):
        run, _ = open_run(folder, config, job)
    assert run.folder == folder
    with Path(files["test_file"]).open("a") as file:  # what is judged on may be anything
        file.write("fed\tD E F\n")
    open_run(folder, config, job)
    with Path(files["train_file"]).open("a") as file:
        file.write("fed\tD E F\n")
    with pytest.raises(QkvError, match=r"train.tsv has changed since the run was started.*choose another --out"):
        open_run(folder, config, job)
    with pytest.raises(QkvError, match=r"has changed .*--test-file"):
        require_judgeable([folder])
    Path(files["train_file"]).unlink()
    require_judgeable([folder])  # who reads it will say so


def test_a_folder_of_texts_is_known_by_all_of_them(tmp_path):
    texts, folder = tmp_path / "texts", tmp_path / "run"
    (texts / "more").mkdir(parents=True)
    folder.mkdir()
    for name in ("a.txt", "more/b.txt"):
        (texts / name).write_text("one\n\ntwo\n")
    note_files(folder, {"source": str(texts)})
    require_judgeable([folder])
    (texts / "more/b.txt").rename(texts / "more/c.txt")
    with pytest.raises(QkvError, match=r"texts has changed"):
        require_judgeable([folder])
