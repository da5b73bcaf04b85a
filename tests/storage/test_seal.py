"""The manifest of a folder that is filled and changed over time."""

import json
import os

import pytest

from qkv import storage
from qkv.errors import QkvError
from qkv.storage import is_sealed, read_all_sealed, read_sealed, seal_files, sealed_names, write_sealed
from tests.runs.sealing import flip

FILES = {"a.json": b'{"a": 1}', "b.bin": bytes(range(200))}


@pytest.fixture
def folder(tmp_path):
    seal_files(tmp_path, FILES)
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_sealed_files_are_read_back_and_others_may_be_there(folder):
    (folder / "metrics.jsonl").write_text("more")
    assert is_sealed(folder)
    assert sealed_names(folder) == set(FILES)
    assert read_all_sealed(folder) == FILES
    assert read_sealed(folder, "b.bin") == FILES["b.bin"]


def test_a_folder_without_a_seal_is_read_as_it_is(tmp_path):
    (tmp_path / "a.json").write_bytes(b"x")
    assert (is_sealed(tmp_path), sealed_names(tmp_path), read_sealed(tmp_path, "a.json")) == (False, set(), b"x")
    write_sealed(tmp_path, "b.bin", b"y")
    assert sealed_names(tmp_path) == {"b.bin"}


@pytest.mark.parametrize("name", FILES)
def test_bad_input_is_named(folder, name):
    flip(folder / name, 3, 2)
    with pytest.raises(QkvError, match=f"{name} is damaged: its sha256 is not the one in MANIFEST.json"):
        read_sealed(folder, name)
    with pytest.raises(QkvError, match=f"{name} is damaged"):
        read_all_sealed(folder)
    os.truncate(folder / name, 3)
    with pytest.raises(QkvError, match=f"{name} has 3 bytes, but MANIFEST.json has"):
        read_all_sealed(folder)
    (folder / name).unlink()
    with pytest.raises(QkvError, match=f"there is no file {name}"):
        read_all_sealed(folder)
    os.mkfifo(folder / name)
    with pytest.raises(QkvError, match=f"{name} is not a regular file"):
        read_all_sealed(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "MANIFEST.json is not JSON or is truncated"),
        ('{"format": 2}', "MANIFEST.json lists no files"),
        ('{"format": 2, "files": {"a.json": {"bytes": 8}}}', "MANIFEST.json does not give bytes and sha256 of a.json"),
        ('{"format": 2, "files": {"../x": {}}}', "which is not a plain file name"),
        ('{"format": 2, "files": {}}', "a.json is not in MANIFEST.json"),
    ],
)
def test_bad_input_in_the_manifest(folder, text, message):
    (folder / "MANIFEST.json").write_text(text)
    with pytest.raises(QkvError, match=message):
        read_sealed(folder, "a.json")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("name", ["a.json", "new.bin"])
@pytest.mark.parametrize("before", [None, b"written by a process that was killed, too"])
def test_a_kill_at_any_write_leaves_one_of_the_two(folder, monkeypatch, name, before):
    """Three files are written to replace one; after a kill at each, the old or the new one is there and valid."""
    seen = set()
    for moment in range(4):
        with monkeypatch.context() as patched:
            if before is not None:
                end_at(2 if name in sealed_names(folder) else 1, patched)
                with pytest.raises(Killed):
                    write_sealed(folder, name, before)
        with monkeypatch.context() as patched:
            end_at(moment, patched)
            contents = f"contents {moment}".encode()
            old = read_all_sealed(folder).get(name)
            try:
                write_sealed(folder, name, contents)
            except Killed:
                seen.add(moment)
            assert read_all_sealed(folder).get(name) in (old, contents)
    assert {0, 1} <= seen
    write_sealed(folder, name, b"last")
    assert read_all_sealed(folder) == {**FILES, name: b"last"}
    assert "next" not in json.loads((folder / "MANIFEST.json").read_text())


def end_at(moment, patched):
    """Let the process end before the write of this number."""
    writes, really = [], storage.atomic.write_synced

    def write(path, data):
        if len(writes) == moment:
            raise Killed
        writes.append(path)
        really(path, data)

    patched.setattr(storage.atomic, "write_synced", write)
