import json

import pytest

from qkv.tasks import tasks
from tests.cli.run import qkv


@pytest.mark.parametrize("task", list(tasks))
def test_every_setting_has_a_meaning_and_every_task_its_data_settings(task):
    record = json.loads(qkv("show", task, "--json"))
    assert set(record) == {"task", "family", "parameters", "settings"}
    assert all(set(one) == {"name", "value", "type", "default", "meaning"} for one in record["settings"])
    assert [one["name"] for one in record["settings"] if not one["meaning"]] == []
    assert {one["name"].partition(".")[0] for one in record["settings"]} == {"model", "train", "data"}


def test_values_of_a_preset_and_of_options():
    record = json.loads(qkv("show", "xor:wide", "--set", "train.batch_size=3", "--json"))
    found = {one["name"]: one for one in record["settings"]}
    assert found["train.batch_size"]["value"] == 3
    assert found["train.batch_size"]["default"] == 256
    assert found["train.steps"]["type"] == "int or None"
    assert found["model.hidden_dim"]["value"] != json.loads(qkv("show", "xor", "--json"))["settings"][1]["value"]


def test_parameters_are_counted_where_the_sizes_are_known():
    assert json.loads(qkv("show", "xor", "--json"))["parameters"] == 9  # 2 * 2 + 2 + 2 + 1
    assert json.loads(qkv("show", "pairs", "--json"))["parameters"] is None


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_names_and_values_are_whole(columns):
    text = qkv("show", "recall", columns=columns)
    for one in json.loads(qkv("show", "recall", "--json"))["settings"]:
        assert one["name"] in text
        assert str(one["value"]) in text
    assert "presets of recall: small" in text


def test_bad_input_names_the_nearest():
    assert "unknown task 'pears'; did you mean 'pairs'?" in qkv("show", "pears", code=2)
    assert "did you mean 'large'?" in qkv("show", "pairs:lagre", code=2)
