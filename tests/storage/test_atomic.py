import errno
import os

import pytest

from qkv.errors import QkvError
from qkv.storage import open_file, read_file, read_json, write_atomic, write_json
from tests.storage.files import fail_at, refused


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.bin"
    write_atomic(path, b"first")
    write_atomic(path, b"second, longer")
    assert path.read_bytes() == b"second, longer"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    write_atomic(path, b"first")
    monkeypatch.setattr(os, "fsync", fail_at(1, errno.ENOSPC))
    with pytest.raises(
        QkvError, match=r"cannot save a.bin \(No space left on device\): 6 bytes are needed, [\d,]+ are"
    ):
        write_atomic(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_no_place_for_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with refused(what="cannot save x (Not a directory)", where=tmp_path / "file"):
        write_atomic(tmp_path / "file" / "x", b"")
    with refused(what="cannot save x (No such file or directory)", where=tmp_path / "none"):
        write_atomic(tmp_path / "none" / "x", b"")
    (tmp_path / "folder").mkdir()
    with refused(what="cannot save folder (Is a directory)", where=tmp_path):
        write_atomic(tmp_path / "folder", b"")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_missing_file_and_its_nearest_name(tmp_path):
    write_json(tmp_path / "config.json", {})
    with refused(what="there is no file confg.json", where=tmp_path, nearest="config.json"):
        read_json(tmp_path / "confg.json")
    with refused(what="there is no file zzz", where=tmp_path):
        open_file(tmp_path / "zzz")
    with refused(what="there is no file x", where=tmp_path / "none"):
        open_file(tmp_path / "none" / "x")
    with refused(what=f"{tmp_path.name} is a folder, but a file is expected", where=tmp_path.parent):
        read_json(tmp_path)
    with refused(what="x cannot be read (Not a directory)", where=tmp_path / "config.json"):
        read_json(tmp_path / "config.json" / "x")


def test_bad_input_only_plain_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(QkvError, match=f"{name} is not a regular file, in {tmp_path}"):
            open_file(tmp_path / name)
    (tmp_path / "plain").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("plain")
    assert read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(QkvError, match="plain has 5 bytes, but at most 4 are read"):
        read_file(tmp_path / "plain", 4)
