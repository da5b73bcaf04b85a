"""One bit flip in each file of a run, as `benchmarks.bit_flips` has hundreds."""

import json
import os
import random
from pathlib import Path

import pytest

from benchmarks import bit_flips
from qkv.errors import QkvError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return bit_flips.train(tmp_path_factory.mktemp("flips"))


@pytest.mark.parametrize(
    ("under", "use", "expected"),
    [
        (
            ".",
            bit_flips.predict,
            {
                "MANIFEST.json": "refused",
                "config.json": "refused",
                "data.json": "refused",
                "metrics.jsonl": "harmless",
                "model.safetensors": "refused",
                "report.html": "harmless",
                "vocabulary.json": "refused",
            },
        ),
        (
            "checkpoints/step-00000006",
            bit_flips.resume,
            {
                f"checkpoints/step-00000006/{name}": "recovered"
                for name in (
                    "MANIFEST.json",
                    "best.safetensors",
                    "ema.safetensors",
                    "model.safetensors",
                    "optimizer.safetensors",
                    "progress.json",
                )
            },
        ),
    ],
)
def test_bad_input_a_flip_in_each_file_is_refused_or_harmless(trained, under, use, expected):
    names = bit_flips.files_of(trained, under)
    found = bit_flips.flip_files(trained, names, use, len(names), seed=7)
    assert found["bad"] == []
    assert found["outcomes"] == {name: {outcome: 1} for name, outcome in expected.items()}


def test_what_is_used_as_if_nothing_were_wrong_is_silent(tmp_path):
    def crash(folder):
        raise KeyError(folder.name)

    def refuse(folder):
        raise QkvError("model.bin is damaged", folder)

    assert bit_flips.judge(lambda _: (1,), tmp_path, (2,)) == ("silent", "")
    assert bit_flips.judge(lambda _: (1,), tmp_path, (1,)) == ("harmless", "")
    assert bit_flips.judge(crash, tmp_path, (1,))[0] == "crash"
    assert bit_flips.judge(refuse, tmp_path, (1,)) == ("refused", f"model.bin is damaged, in {tmp_path}")


def test_one_bit_is_flipped(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(50))
    byte, bit = bit_flips.flip(path, random.Random(3))
    assert sum(value.bit_count() for value in path.read_bytes()) == 1
    assert path.read_bytes()[byte] == 1 << bit
    assert os.listdir(tmp_path) == ["x"]


def test_the_table_is_that_of_the_result_file():
    result = json.loads(bit_flips.RESULTS.read_text())
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    assert bit_flips.table(result) in page
    run = [result["sets"][name]["flips"] for name in ("finished run", "last checkpoint")]
    assert (sum(run), result["totals"]["silent"], result["totals"]["crash"]) == (200, 0, 0)
