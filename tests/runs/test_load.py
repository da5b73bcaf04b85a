import json
import shutil
from pathlib import Path

import pytest
import torch

from qkv import runs, tasks
from qkv.errors import QkvError
from qkv.train import Loop, Settings, create_run
from tests.runs.sealing import reseal

SMALL = {
    "model": {"dim": 16, "heads": 2, "hidden_dim": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 24},
    "train": {"steps": 4, "batch_size": 4, "validate_every": 2},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{'ab' * n}c{n % 7}\tA B {n % 5}\n" for n in range(1, 9)))
    return path


@pytest.fixture
def trained(file, tmp_path):
    config = runs.configure("pairs", runs.preset("pairs", None), {**SMALL, "data": {"train_file": str(file)}})
    job = tasks.tasks["pairs"].load(config.data)
    run = create_run(tmp_path / "run")
    runs.save_config(run, config, job)
    model = runs.build(config, job)
    loop = Loop(job.objective(model, config.train), config.train, run)
    loop.train()
    model.load_state_dict(loop.best)
    return tmp_path / "run", model.eval(), job


def test_a_run_comes_back_as_it_was(trained):
    folder, model, job = trained
    config, again, restored = runs.load(str(folder))
    assert config.train.steps == 4
    assert again.vocabulary() == job.vocabulary()
    for name, value in model.state_dict().items():
        assert torch.equal(value, restored.state_dict()[name])


def test_initial_weights_are_a_function_of_the_seed(file):
    changes = {**SMALL, "data": {"train_file": str(file)}}
    config = runs.configure("pairs", runs.preset("pairs", None), changes)
    job = tasks.tasks["pairs"].load(config.data)
    one, two = (runs.build(config, job).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = runs.configure("pairs", runs.preset("pairs", None), {**changes, "train": {**SMALL["train"], "seed": 1}})
    assert not torch.equal(runs.build(other, job).state_dict()["lm_head.weight"], one["lm_head.weight"])


def test_another_family_keeps_only_what_was_set():
    config = runs.configure(
        "pronounce", runs.preset("pronounce", "quick"), {"model": {"family": "recurrent", "dim": 8}}
    )
    assert (config.family, config.model["dim"], config.model["cell"]) == ("recurrent", 8, "lstm")


def test_steps_replace_minutes():
    config = runs.configure("pronounce", runs.preset("pronounce", "quick"), {"train": {"steps": 7}})
    assert (config.train.steps, config.train.minutes) == (7, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"dimm": 8}}, "unknown setting of EncoderDecoder: 'dimm'; did you mean 'dim'"),
        ({"train": {"step": 8}}, "unknown training setting 'step'; did you mean 'steps'"),
        ({"model": {"family": "recurent"}}, "unknown model 'recurent'; did you mean 'recurrent'"),
    ],
)
def test_unknown_settings_name_the_nearest(changes, message):
    with pytest.raises(ValueError, match=message):
        runs.configure("pairs", runs.preset("pairs", None), changes)


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown task 'pronunce'; did you mean 'pronounce'"):
        runs.preset("pronunce", None)
    with pytest.raises(ValueError, match="unknown preset of task 'pairs': 'quik'; did you mean 'quick'"):
        runs.preset("pairs", "quik")
    with pytest.raises(ValueError, match="unknown data setting 'trainfile'; did you mean 'train_file'"):
        tasks.tasks["pairs"].load({"trainfile": "x"})
    with pytest.raises(QkvError, match="needs a file to train on"):
        tasks.tasks["pairs"].load({})


def test_broken_run_folders(trained, tmp_path):
    folder, *_ = trained
    with pytest.raises(QkvError, match="no such run folder"):
        runs.load(tmp_path / "nowhere")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(QkvError, match=r"model.safetensors has \d+ bytes, but MANIFEST.json has"):
        runs.load(folder)
    reseal(folder)
    with pytest.raises(QkvError, match="model.safetensors is damaged or not safetensors: it has"):
        runs.load(folder)
    weights.unlink()
    reseal(folder)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(QkvError, match="has no model yet"):
        runs.load(folder)
    _rewrite(folder / "config.json", format=99)
    with pytest.raises(QkvError, match="config.json"):
        runs.load(folder)
    _rewrite(folder / "config.json", format=1, train={"stops": 3})
    with pytest.raises(QkvError, match="incomplete or from another version"):
        runs.load(folder)


def _rewrite(path: Path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    reseal(path.parent)


def test_settings_of_presets_are_valid():
    for name in tasks.tasks:
        for preset in tasks.tasks[name].presets:
            assert isinstance(runs.configure(name, runs.preset(name, preset), {}).train, Settings)
