import json

import pytest

from tests.cli.run import qkv


def test_json_keys():
    rows = json.loads(qkv("bench", "attention", "--tokens", "64,128", "--json"))
    assert all(set(row) == {"kind", "tokens", "milliseconds", "ratio_to_softmax", "peak_bytes"} for row in rows)
    rows = [row for row in rows if row["kind"] != "relu"]  # a plugin that other tests of this process register
    kinds = ["softmax", "softmax, key_dim 16", "delta", "elu", "linear", "taylor"]
    assert [(row["tokens"], row["kind"]) for row in rows] == [(n, kind) for n in (64, 128) for kind in kinds]
    assert all(row["milliseconds"] > 0 and row["peak_bytes"] >= 8 * row["tokens"] * 64 * 4 for row in rows)
    assert all(row["ratio_to_softmax"] == 1 for row in rows if row["kind"] == "softmax")


def test_table_with_backward_and_a_plugin():
    arguments = ("--tokens", "32,64", "--backward", "--kind", "relu", "--plugin", "examples.relu_kind")
    table = qkv("bench", "attention", *arguments)
    assert "forward and backward" in table
    assert "relu" in table
    assert "growth" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "many"), "--tokens 'many': expected whole numbers"),
        (("--tokens", "0"), "a length must be at least 1"),
        (("--device", "tpu"), "--device 'tpu': expected cpu, cuda or mps"),
        (("--kind", "additive"), "'additive' has learned parameters"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, message):
    assert message in qkv("bench", "attention", *arguments, code=2)
