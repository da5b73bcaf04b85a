"""A run is one sealed set: what was changed is refused by name, and a kill leaves a run that resumes."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from qkv import runs, tasks
from qkv.errors import QkvError, QkvWarning
from qkv.storage import read_folder, save_folder
from qkv.storage.folder import open_member
from qkv.train import Loop, Run, create_run
from tests.runs.sealing import flip, reseal
from tests.tasks.tiny import write_pairs

MODEL = {"dim": 16, "heads": 2, "hidden_dim": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 24}
FILES = ["config.json", "vocabulary.json", "data.json", "model.safetensors"]


def train(folder, data, **changes):
    """Train 4 steps in a new folder."""
    changes = {"model": MODEL, "train": {"steps": 4, "batch_size": 4, "validate_every": 2, **changes}, "data": data}
    config = runs.configure("pairs", runs.preset("pairs", None), changes)
    task = tasks.tasks["pairs"].load(config.data)
    run = create_run(folder)
    runs.save_config(run, config, task)
    loop_of(run, config, task).train()
    return run


def loop_of(run, config, task):
    return Loop(runs.make_objective(config, task, runs.build(config, task)), config.train, run)


def resume(run):
    """Train to the end, with the calls of `qkv train --resume`."""
    config = runs.read_config(run, resume=True)
    runs.require_unchanged(run.folder, "train another run")
    task = tasks.tasks[config.task].load(config.data)
    runs.require_same_vocabulary(run, task.vocabulary())
    loop = loop_of(run, config, task)
    loop.resume()
    loop.train()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sealed")
    return train(folder / "run", write_pairs(folder)).folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return Run(tmp_path / "run")


def edit(run, group, **changes):
    path = run.folder / "config.json"
    record = json.loads(path.read_text())
    record[group] |= changes
    path.write_text(json.dumps(record, indent=1))


def events(run):
    return [line["event"] for line in run.read_metrics() if "event" in line]


@pytest.mark.parametrize("name", FILES)
def test_bad_input_a_flipped_bit_is_refused(run, name):
    flip(run.folder / name, 2)
    with pytest.raises(QkvError, match=f"{name} is damaged"):
        runs.load(run.folder)


@pytest.mark.parametrize("name", FILES)
def test_bad_input_a_file_of_another_run_is_refused(run, name, tmp_path):
    (tmp_path / "other").mkdir()
    other = train(tmp_path / "other" / "run", write_pairs(tmp_path / "other"), seed=3)
    (other.folder / "vocabulary.json").write_text("{}")
    (run.folder / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(QkvError, match=f"{name.split('.')[0]}.* (is damaged|has been changed|has .* bytes)"):
        runs.load(run.folder)


def test_a_missing_manifest_is_refused_and_written_again(run):
    before = read_set(run)
    (run.folder / "MANIFEST.json").unlink()
    for use in (runs.load, lambda folder: runs.read_config(Run(folder))):
        with pytest.raises(QkvError, match=r"MANIFEST.json is missing, so the run cannot be verified; train with --re"):
            use(run.folder)
    resume(run)
    assert "sealed" in events(run)
    assert read_set(run) == before
    runs.load(run.folder)


def read_set(run):
    return {name: (run.folder / name).read_bytes() for name in (*FILES, "MANIFEST.json")}


def test_bad_input_a_missing_manifest_does_not_hide_a_change(run):
    (run.folder / "MANIFEST.json").unlink()
    edit(run, "model", dropout=0.25)
    with pytest.raises(QkvError, match=r"of another run: it was saved with model.dropout=0.0, but config.json has"):
        resume(run)
    assert not (run.folder / "MANIFEST.json").exists()
    edit(run, "model", dropout=0.0)
    vocabulary = json.loads((run.folder / "vocabulary.json").read_text())
    vocabulary["sources"]["tokens"].reverse()
    (run.folder / "vocabulary.json").write_text(json.dumps(vocabulary))
    with pytest.raises(QkvError, match="vocabulary.json is not the vocabulary of the training data"):
        resume(run)


def test_a_kill_between_weights_and_manifest_leaves_a_run_that_resumes(run, monkeypatch):
    before = read_set(run)
    run.weights.unlink()
    reseal(run.folder)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("qkv.storage.seal.write_json", killed)
        with pytest.raises(Killed):
            resume(run)
    assert run.weights.read_bytes() == before["model.safetensors"]
    assert not run.is_finished()
    with pytest.warns(QkvWarning, match="training is not finished"):
        runs.load(run.folder)
    resume(run)
    assert run.is_finished()
    assert read_set(run) == before


def test_a_stopped_run_is_loaded_from_its_best_weights_alone(run, monkeypatch):
    run.weights.unlink()
    reseal(run.folder)
    opened = []

    def listed(folder, name):
        opened.append(name)
        return open_member(folder, name)

    monkeypatch.setattr("qkv.storage.folder.open_member", listed)
    with pytest.warns(QkvWarning, match="using the best weights, of step"):
        _, _, model = runs.load(run.folder)
    assert set(opened) == {"MANIFEST.json", "progress.json", "best.safetensors"}
    best = run.load_checkpoint().tensors["best"]
    assert all(torch.equal(best[name], value) for name, value in model.state_dict().items())


def test_a_damaged_model_is_saved_again_by_resuming(run):
    before = read_set(run)
    flip(run.weights, 5)
    resume(run)
    assert read_set(run) == before


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("model", "dropout", 0.3),
        ("model", "attention", "taylor"),
        ("model", "positions", "sinusoidal"),
        ("model", "heads", 4),
        ("data", "held_out", 3),
        ("train", "learning_rate", 0.5),
    ],
)
def test_bad_input_an_edited_config_is_named(run, group, name, value):
    before = json.loads((run.folder / "config.json").read_text())[group][name]
    edit(run, group, **{name: value})
    expected = f"config.json has been changed: it has {group}.{name}={value}, but the run was started with .*{before}"
    with pytest.raises(QkvError, match=expected):
        resume(run)
    with pytest.raises(QkvError, match=expected):
        runs.load(run.folder)


@pytest.mark.parametrize(
    ("group", "name", "value"), [("model", "dropout", 0.3), ("model", "attention", "taylor"), ("data", "held_out", 3)]
)
def test_bad_input_an_edited_config_with_a_new_seal_is_named(run, group, name, value):
    edit(run, group, **{name: value})
    reseal(run.folder)
    with pytest.raises(QkvError, match=f"the checkpoint is of another run: .*, but config.json has {group}.{name}="):
        resume(run)


def test_bad_input_an_edited_config_before_the_first_checkpoint(run):
    shutil.rmtree(run.checkpoints)
    edit(run, "model", dropout=0.25)
    with pytest.raises(QkvError, match=r"config.json has \d+ bytes, but MANIFEST.json has"):
        resume(run)


def test_bad_input_the_checkpoints_of_another_run_are_refused(run, tmp_path):
    """With equal shapes and an equal first batch: other held-out pairs, another test file."""
    (tmp_path / "other").mkdir()
    data = write_pairs(tmp_path / "other")
    other = train(tmp_path / "other" / "run", data)
    shutil.rmtree(run.checkpoints)
    shutil.copytree(other.checkpoints, run.checkpoints)
    with pytest.raises(QkvError, match="the checkpoint is of another run: it was saved with data.train_file="):
        resume(run)


def rewrite(run, change):
    """Change the files of the newest checkpoint and write its manifest again."""
    folder = run.checkpoints / "step-00000004"
    files = read_folder(folder)
    shutil.rmtree(folder)
    change(files)
    save_folder(folder, files)


def put_nan(files, name="model.safetensors"):
    data = bytearray(files[name])
    data[-4:] = torch.tensor([float("nan")]).numpy().tobytes()
    files[name] = bytes(data)


def put_progress(**changes):
    def change(files):
        record = json.loads(files["progress.json"])
        record["progress"] |= changes
        files["progress.json"] = json.dumps(record).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put_nan, r"model.safetensors has NaN in \w+"),
        (lambda files: put_nan(files, "best.safetensors"), "best.safetensors has NaN in"),
        (lambda files: put_nan(files, "optimizer.safetensors"), "optimizer.safetensors has NaN in"),
        (put_progress(step=10**9), "progress.json has step 1000000000, but the folder is of step 4"),
        (put_progress(validated=7), "progress.json has validated=7, which must be from 0 to 4"),
        (put_progress(best_step=-1), "progress.json has best_step=-1, which must be from 0 to 4"),
        (put_progress(steps=3), "progress.json has steps=3, which must be at least 4"),
        (lambda files: files.update({"progress.json": b'{"format": 2}'}), "progress.json has no step"),
        (lambda files: files.update({"ema.safetensors": b"x" * 50}), "ema.safetensors is damaged"),
    ],
)
def test_bad_input_a_rewritten_checkpoint_is_refused(run, change, message):
    """The one before it is used, and training ends the same."""
    before = read_set(run)
    rewrite(run, change)
    resume(run)
    (line,) = [line for line in run.read_metrics() if line.get("event") == "damaged_checkpoint"]
    assert message.split("\\w")[0] in line["message"]
    assert read_set(run) == before
    shutil.rmtree(run.checkpoints / "step-00000002")
    rewrite(run, change)
    with pytest.raises(QkvError, match=message):
        resume(run)


def test_bad_input_a_checkpoint_that_lacks_a_part(run):
    rewrite(run, lambda files: files.pop("best.safetensors"))
    with pytest.raises(QkvError, match="the checkpoint has no best.safetensors"):
        resume(run)


def test_measured_steps_keep_the_seal(run):
    run.record_steps(9)
    assert runs.read_config(run).train.steps == 9
    assert runs.load(run.folder)[0].train.steps == 9
    weights = load_file(run.weights)
    run.save_weights(weights)
    assert runs.load(run.folder)[0].train.steps == 9
