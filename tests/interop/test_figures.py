"""What docs/huggingface.md says is what was measured."""

import json
from pathlib import Path

from benchmarks.minilm import RESULTS, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "huggingface.md"
RECORD = json.loads(RESULTS.read_text())


def test_the_table_of_kinds():
    assert table(RECORD["swapped"]["rows"]) in PAGE.read_text()


def test_hidden_states_are_equal():
    found = RECORD["equality"]
    assert found["sentences"] == 200
    assert found["largest_difference"] <= 1e-5
    assert found["smallest_cosine"] >= 0.999999
    assert f"difference of {found['largest_difference']}." in PAGE.read_text()


def test_speed():
    text, speed = " ".join(PAGE.read_text().split()), RECORD["speed"]
    for part, said in (
        ("padded", "`transformers` took {:.1f} times as long for padded"),
        ("without_padding", "and {:.1f} times without padding. On"),
    ):
        measured = speed[part]
        assert len(measured["ratios"]) == 9
        assert measured["ratio"] >= 0.97
        assert said.format(measured["ratio"]) in text
    assert (speed["batch"], speed["padded"]["batches"], speed["without_padding"]["length"]) == (16, 2, 96)
    assert "on two padded batches of 16 sentences, and on one of 16 rows of 96 tokens without padding" in text


def test_speed_on_a_gpu():
    text = " ".join(PAGE.read_text().split())
    speed = json.loads(RESULTS.with_name("minilm_gpu.json").read_text())["speed"]
    said = "it took {:.1f} times as long for padded batches and {:.1f} times without padding"
    assert said.format(*(speed[part]["ratio"] for part in ("padded", "without_padding"))) in text
