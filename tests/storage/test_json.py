import json
import os

import pytest

from qkv.errors import QkvError
from qkv.storage import parse_json, read_json, write_json
from tests.storage.files import refused


def test_json_there_and_back(tmp_path):
    path, record = tmp_path / "a.json", {"name": "é", "sizes": [3, 5], "deep": {"format": 7}, "none": None}
    write_json(path, record)
    assert read_json(path) == record
    assert json.loads(path.read_text("utf-8")) == {"format": 2, **record}
    write_json(path, {"format": 2, "x": 2})
    assert read_json(path) == {"x": 2}


def test_json_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    with pytest.raises(ValueError, match="record has format 3, but this version of qkv writes format 2"):
        write_json(tmp_path / "a.json", {"format": 3})
    assert os.listdir(tmp_path) == []


def test_a_newer_format_is_refused_with_both_numbers(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"format": 3, "a": 1}')
    with refused(what="config.json has format 3, but this version of qkv reads up to 2", where=tmp_path):
        read_json(path)


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"format": 0}', '{"format": true}', '{"format": "1"}', '{"format": 1.0}']
)
def test_a_format_that_is_none(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(QkvError, match='a.json must have a "format" of 1 to 2, but has'):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"format": 1} x',
        b'{"format": 1, "a": "\xff"}',
        b'{"format": 1, "a": NaN}',
        b'{"format": 2' * 3,
    ],
)
def test_what_is_not_json(tmp_path, data):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(QkvError, match=f"a.json is not JSON or is truncated .*, in {tmp_path}"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ("7", "int"), ("null", "NoneType")])
def test_json_that_is_no_object(tmp_path, text, kind):
    (tmp_path / "a.json").write_text(text)
    with refused(what=f"a.json must hold a JSON object, but holds a {kind}", where=tmp_path):
        read_json(tmp_path / "a.json")


def test_json_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"step": 17, "name": "x"})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(QkvError, match="a.json is not JSON or is truncated"):
            read_json(path)


def test_bad_input_deep_wide_and_long_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    nested = {
        64: b'{"format": 2, "a": ' + b"[" * 63 + b"]" * 63 + b"}",
        65: b'{"format": 2, "a": ' + b"[" * 64 + b"]" * 64 + b"}",
        100_000: b'{"format": 2, "a": ' + b'{"a":' * 99_999 + b"1" + b"}" * 99_999 + b"}",
    }
    assert parse_json(nested[64], path)["a"] != []
    for depth in (65, 100_000):
        with pytest.raises(QkvError, match="config.json is nested deeper than 64 levels"):
            parse_json(nested[depth], path)
    with pytest.raises(QkvError, match=r"has more than 2,000,000 values"):
        parse_json(b'{"format": 2, "a": [' + b"[]," * 1_000_000 + b"1]}", path)
    path.write_bytes(nested[64])
    monkeypatch.setattr("qkv.storage.json.MAX_BYTES", 100)
    with pytest.raises(QkvError, match=r"config.json has 146 bytes, but at most 100 are read"):
        read_json(path)
