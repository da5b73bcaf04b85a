import json

import pytest

from tests.cli.run import qkv


def test_json_has_every_kind_and_scheme():
    records = json.loads(qkv("list", "--json"))
    names = {(record["group"], record["name"]) for record in records}
    assert {("attention", "taylor"), ("attention", "additive"), ("positions", "rope"), ("positions", "t5")} <= names
    taylor = next(record for record in records if record["name"] == "taylor")
    assert set(taylor["positions"]) == {"alibi", "learned", "rope", "sinusoidal"}


def test_one_group():
    table = qkv("list", "positions")
    assert "shaw" in table
    assert "taylor" in table  # among those served
    assert "backends" not in table


@pytest.mark.parametrize(("group", "names"), [("data", {"cmudict", "mnist"}), ("metrics", {"accuracy", "spearman"})])
def test_data_sets_and_metrics_have_a_name_and_a_description(group, names):
    records = json.loads(qkv("list", group, "--json"))
    assert names <= {record["name"] for record in records}
    assert all(set(record) == {"group", "name", "summary"} and record["summary"] for record in records)
    table = qkv("list", group)
    assert all(record["name"] in table for record in records)


def test_a_plugin_is_listed():
    names = [
        record["name"] for record in json.loads(qkv("list", "attention", "--plugin", "examples.relu_kind", "--json"))
    ]
    assert "relu" in names


def test_wrong_use():
    assert "'atention' is not one of" in qkv("list", "atention", code=2)
    assert "--plugin no_such_module: no module named 'no_such_module'" in qkv(
        "list", "--plugin", "no_such_module", code=2
    )
