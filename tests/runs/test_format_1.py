"""Run folders of format 1, written by the version before: they load, resume bit for bit, and predict the same.

The fixture has runs that were stopped at step 8 of 20, and what that version made of them when it resumed: the final
weights, the metrics and the predictions.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv import runs
from qkv.errors import QkvError
from qkv.inference import PredictOptions
from qkv.storage import FORMAT, verify_folder
from qkv.storage.format_1 import upgrade_config, upgrade_key, upgrade_progress, upgrade_state_dict
from qkv.tasks import tasks
from qkv.train import Loop, Run
from qkv.train.cpu_conditions import cpu_conditions
from tests.runs.sealing import reseal

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format_1"
NAMES = ["masked", "recurrent", "text", "transformer", "words", "xor"]
MACHINE = json.loads((FIXTURE / "machine.json").read_text())
PREDICTED = {
    "transformer": (["cat", "tarot"], PredictOptions(best=2)),
    "recurrent": (["cat", "tarot"], PredictOptions(best=2)),
    "text": (["The cat"], PredictOptions(search="greedy", tokens=6)),
    "masked": (["The cat [MASK] the dog."], PredictOptions(best=3)),
    "xor": (["0,1", "1,1"], PredictOptions()),
}


@pytest.fixture
def one_thread():
    """As many threads as the fixture was made with: sums in another order have other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def copy_run(name, folder):
    """Copy the files of the fixture and the stopped run; the paths of the files are those of the copy."""
    shutil.copytree(FIXTURE / "text", folder / "text")
    shutil.copy(FIXTURE / "pairs.tsv", folder)
    run = folder / "run"
    shutil.copytree(FIXTURE / "runs" / name / "stopped", run)
    for file in ("config.json", "data.json"):
        text = (run / file).read_text()
        (run / file).write_text(text.replace("/FIXTURE", str(folder)))
    return Run(run)


def resume(run):
    """Train to the end, with the calls of `qkv train --resume`."""
    config = runs.read_config(run)
    runs.require_unchanged(run.folder, "train another run")
    task = tasks[config.task].load(config.data)
    model = runs.build(config, task)
    loop = Loop(runs.make_objective(config, task, model), config.train, run)
    loop.resume()
    loop.train()
    return loop


def expected_weights(name):
    weights = load_file(FIXTURE / "runs" / name / "continuation.safetensors")
    return {upgrade_key(key): value for key, value in weights.items()}


def tolerance():
    """Return 0 on a machine like that of the fixture; on another, kernels may round differently."""
    here = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    return 0.0 if here == MACHINE else 1e-6


def assert_equal_weights(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=tolerance(), atol=tolerance(), msg=key)


def metrics(lines):
    """Return step, and loss or score, of each update and each validation."""
    wanted = [line for line in lines if "loss" in line or line.get("event") == "validated"]
    values = [(line["step"], line["loss"] if "loss" in line else line["score"]) for line in wanted]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_bit_for_bit(name, tmp_path, one_thread):
    run = copy_run(name, tmp_path)
    verify_folder(run.checkpoints / "step-00000008")
    loop = resume(run)
    assert_equal_weights(load_file(run.weights), expected_weights(name))
    assert_equal_weights({key: value.cpu() for key, value in loop.best.items()}, expected_weights(name))
    text = (FIXTURE / "runs" / name / "continuation.jsonl").read_text()
    expected = metrics([json.loads(line) for line in text.splitlines()])
    assert len(expected) == 25  # 20 updates and 5 validations
    torch.testing.assert_close(metrics(run.read_metrics()), expected, rtol=tolerance(), atol=tolerance())
    resumed = [line for line in run.read_metrics() if line.get("event") == "resumed"]
    assert [(line["step"], set(line["changed"]) - {"torch"}) for line in resumed] == [(8, set(cpu_conditions()))]
    assert {line["changed"]["cpu"][0] for line in resumed} == {None}  # not recorded at that time: not claimed as exact
    assert not resumed[0]["exact"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_after_resuming_has_format_2(name, tmp_path, one_thread):
    run = copy_run(name, tmp_path)
    resume(run)
    newest = run.checkpoints / "step-00000020"
    assert json.loads((newest / "progress.json").read_text())["format"] == FORMAT == 2
    assert {path.stem for path in newest.glob("*.safetensors")} == {"model", "ema", "best", "optimizer"}
    loop = Loop(*again(run))
    loop.resume()
    assert loop.progress.step == 20


def again(run):
    config = runs.read_config(run)
    task = tasks[config.task].load(config.data)
    return runs.make_objective(config, task, runs.build(config, task)), config.train, run


@pytest.mark.parametrize("name", sorted(PREDICTED))
def test_a_finished_run_predicts_the_same(name, tmp_path, one_thread):
    """With its weights under the old names, as the version before left them."""
    run = copy_run(name, tmp_path)
    shutil.copy(FIXTURE / "runs" / name / "continuation.safetensors", run.weights)
    _, task, model = runs.load(run.folder)
    texts, options = PREDICTED[name]
    found = task.predictor(model, options).predict(texts, range(len(texts)))
    expected = json.loads((FIXTURE / "runs" / name / "answers.json").read_text())
    assert_equal_records(found, expected)


def test_word_vectors_of_a_finished_run_are_the_same(tmp_path):
    run = copy_run("words", tmp_path)
    weights = load_file(FIXTURE / "runs" / "words" / "continuation.safetensors")
    save_file(weights, run.weights)
    _, _, model = runs.load(run.folder)
    assert torch.equal(model.center, weights["centre"])
    assert torch.equal(model.context, weights["context"])


def assert_equal_records(found, expected):
    """Equal, but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for key, value in expected.items():
            assert_equal_records(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal_records(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected)


def test_every_setting_has_its_new_name(tmp_path):
    run = copy_run("transformer", tmp_path)
    config = runs.read_config(run)
    assert config.train.max_grad_norm == 0.5
    assert (config.train.ema_decay, config.train.label_smoothing) == (0.9, 0.1)
    assert (config.train.validate_every, config.train.accumulation_steps) == (4, 2)
    assert "unlabeled" in config.data
    assert runs.read_config(copy_run("masked", tmp_path / "masked")).data["tokenizer"] == "wordpiece"
    mlp = runs.read_config(copy_run("xor", tmp_path / "xor")).model
    assert (mlp["normalization"], mlp["initialization"]) == (None, "auto")


def test_a_config_of_format_2_is_not_renamed(tmp_path):
    run = copy_run("xor", tmp_path)
    record = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps({**record, "format": 2}))
    reseal(run.folder)
    with pytest.raises(QkvError, match="unknown training setting 'clip'"):
        runs.read_config(run)
    (run.folder / "config.json").write_text(json.dumps({**record, "format": 3}))
    reseal(run.folder)
    with pytest.raises(QkvError, match=r"config.json has format 3, but this version of qkv reads up to 2"):
        runs.read_config(run)


def test_a_damaged_checkpoint_is_refused_as_it_is_stored(tmp_path):
    run = copy_run("xor", tmp_path)
    path = run.checkpoints / "step-00000008" / "optimiser.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(QkvError, match=r"optimiser.safetensors is damaged"):
        resume(run)


def test_keys_of_state_dicts():
    renamed = {
        "read.weight": "source_embedding.weight",
        "write.weight": "target_embedding.weight",
        "read_places.added.table.weight": "source_positions.added.table.weight",
        "write_places.added.table.weight": "target_positions.added.table.weight",
        "places.added.table.weight": "positions.added.table.weight",
        "predict.bias": "lm_head.bias",
        "follow.bias": "next_sentence_head.bias",
        "centre": "center",
        "blocks.3.feed_forward.enter.weight": "blocks.3.feed_forward.up.weight",
        "decoder.0.feed_forward.leave.bias": "decoder.0.feed_forward.down.bias",
    }
    assert {old: upgrade_key(old) for old in renamed} == renamed
    assert {new: upgrade_key(new) for new in renamed.values()} == {new: new for new in renamed.values()}
    kept = ["attention.read.weight", "blocks.0.attention.key.weight", "decoder.0.enter", "layers.0.linear.bias"]
    assert [upgrade_key(key) for key in kept] == kept


def test_keys_of_another_model_stay():
    """A family of another package may call a module `read`."""
    weights = {"read.weight": 1, "predict.bias": 2, "blocks.0.feed_forward.enter.bias": 3}
    assert upgrade_state_dict(weights, list(weights)) == weights
    assert upgrade_state_dict(weights, ["lm_head.bias"]) == {
        "read.weight": 1,
        "lm_head.bias": 2,
        "blocks.0.feed_forward.enter.bias": 3,
    }


def test_records_keep_what_has_no_new_name():
    record = {"task": "xor", "family": "network", "model": {"layers": 1, "normalisation": None}, "data": {"least": 2}}
    assert upgrade_config(record) == {**record, "model": {"layers": 1, "normalization": None}}
    assert upgrade_config({"train": None}) == {"train": None}
    check = {"settings": {"seed": 3, "clip": 1.0}, "data": {"first batch": "00"}}
    assert upgrade_progress({"progress": {"step": 8}, "identity": check}) == {
        "progress": {"step": 8},
        "resume_check": {"settings": {"seed": 3, "max_grad_norm": 1.0}, "data": {"first batch": "00"}},
    }
