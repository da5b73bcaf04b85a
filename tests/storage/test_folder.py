import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.storage import (
    latest_valid_step,
    read_folder,
    remove_stale,
    save_folder,
    verify_folder,
    write_json,
)
from tests.storage.files import fail_at, refused

FILES = {"model.bin": bytes(range(256)) * 19, "notes.json": b'{"format": 1, "step": 7}', "empty": b""}


def test_a_folder_there_and_back(tmp_path):
    folder = tmp_path / "run" / "checkpoints" / "step-00000007"
    save_folder(folder, FILES)
    verify_folder(folder)
    assert read_folder(folder) == FILES
    assert os.listdir(folder.parent) == ["step-00000007"]
    assert json.loads((folder / "MANIFEST.json").read_text()) == {
        "format": 2,
        "files": {name: {"bytes": len(data), "sha256": sha256(data).hexdigest()} for name, data in FILES.items()},
    }


def test_everything_is_on_the_disk_before_the_rename_and_the_manifest_last(tmp_path, monkeypatch):
    events = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(source, target, **places):
        events.append(f"{Path(source).name} -> {Path(target).name}")
        real_rename(source, target, **places)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    parent, temporary = tmp_path / "new", f"s.tmp-{os.getpid()}"
    save_folder(parent / "s", {"b": b"1", "a": b"2"})
    assert events == [tmp_path.name, "b", "a", "MANIFEST.json", temporary, f"{temporary} -> s", "new"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "MANIFEST.json"])
def test_only_plain_names_are_saved(tmp_path, name):
    with pytest.raises(ValueError, match="files must have plain names"):
        save_folder(tmp_path / "s", {name: b""})
    assert os.listdir(tmp_path) == []


def test_saving_again(tmp_path):
    folder = tmp_path / "s"
    save_folder(folder, FILES)
    before = (folder / "model.bin").stat()
    save_folder(folder, dict(reversed(FILES.items())))
    after = (folder / "model.bin").stat()  # it is read again, so its access time may change
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    with refused(what="s is there already, with other contents", where=tmp_path):
        save_folder(folder, {**FILES, "empty": b"no longer"})
    assert read_folder(folder) == FILES
    for number in (1, 2):
        (folder / "model.bin").write_bytes(b"damage %d" % number)
        save_folder(folder, FILES)
        assert read_folder(folder) == FILES
        assert (tmp_path / f"s.damaged-{number}" / "model.bin").read_bytes() == b"damage %d" % number
    assert sorted(os.listdir(tmp_path)) == ["s", "s.damaged-1", "s.damaged-2"]


def test_saving_where_an_empty_folder_or_a_half_written_one_is(tmp_path):
    (tmp_path / "s").mkdir()
    left = tmp_path / f"s.tmp-{os.getpid()}"
    left.mkdir()
    (left / "half").write_bytes(b"x")
    save_folder(tmp_path / "s", FILES)
    assert read_folder(tmp_path / "s") == FILES
    assert os.listdir(tmp_path) == ["s"]


def test_a_file_where_a_folder_is_needed(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with refused(what="file is a file, but a folder is to be saved", where=tmp_path):
        save_folder(tmp_path / "file", FILES)
    with pytest.raises(QkvError, match=r"cannot save s \((File exists|Not a directory)\), in .*/file"):
        save_folder(tmp_path / "file" / "s", FILES)
    with refused(what="file is a file, but a folder is expected", where=tmp_path):
        verify_folder(tmp_path / "file")
    with refused(what="file is a file, but a folder is expected", where=tmp_path):
        latest_valid_step(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("call", range(1, 8))
def test_a_disk_that_fails_at_any_moment(tmp_path, monkeypatch, call):
    """Three files, manifest, folder, parent: a failure of the first five leaves nothing, and there is no seventh."""
    save_folder(tmp_path / "step-00000003", FILES)
    monkeypatch.setattr(os, "fsync", fail_at(call, errno.EIO))
    failures = []
    try:
        save_folder(tmp_path / "step-00000005", FILES)
    except QkvError as error:
        failures.append(str(error))
    expected = f"cannot save step-00000005 (Input/output error), in {tmp_path}"
    assert failures == [expected] * (call < 7)
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000005"][: 1 + (call > 5)]
    assert latest_valid_step(tmp_path)[1] == []


@contextmanager
def ordinary_user():
    """Root may write anywhere: be nobody for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_folder():
    parent = Path(tempfile.mkdtemp())  # not tmp_path: only its owner may enter that
    parent.chmod(0o555)
    try:
        with ordinary_user(), refused(what="cannot save s (Permission denied)", where=parent):
            save_folder(parent / "s", FILES)
        with ordinary_user(), refused(what="cannot save a.json (Permission denied)", where=parent):
            write_json(parent / "a.json", {})
        parent.chmod(0o000)
        with ordinary_user(), refused(what=f"{parent.name} cannot be read (Permission denied)", where=parent.parent):
            verify_folder(parent)
        parent.chmod(0o700)
        assert os.listdir(parent) == []
    finally:
        shutil.rmtree(parent)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from qkv.errors import QkvError
from qkv.storage import save_folder, write_atomic

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
folder = Path(sys.argv[1])
for save in (lambda: save_folder(folder / "s", {"small": bytes(100), "big": bytes(20_011)}),
             lambda: write_atomic(folder / "big", bytes(20_011))):
    try:
        save()
    except QkvError as error:
        print(error)
"""


def test_a_full_disk(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    folder, file = done.stdout.splitlines()
    manifest = len('{\n "format": 1,\n "files": {\n  "big": {\n   "bytes": 20011,\n   "sha256": ""\n  },\n')
    manifest += len('  "small": {\n   "bytes": 100,\n   "sha256": ""\n  }\n }\n}') + 2 * 64
    assert folder.startswith(f"cannot save s (File too large): {20_111 + manifest:,} bytes are needed, ")
    assert file.startswith("cannot save big (File too large): 20,011 bytes are needed, ")
    assert all(line.endswith(f" are free, in {tmp_path}") for line in (folder, file))
    assert os.listdir(tmp_path) == []


# damage


def test_what_is_wrong_is_named(tmp_path):
    folder, model = tmp_path / "s", FILES["model.bin"]

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        save_folder(folder, FILES)

    fresh()
    (folder / "model.bin").unlink()
    with refused(what="model.bin is missing", where=folder):
        verify_folder(folder)
    (folder / "model.bin").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(model)
    with refused(what="model.bin is not a regular file", where=folder):
        read_folder(folder)
    (folder / "model.bin").unlink()
    os.mkfifo(folder / "model.bin")  # opening it would wait for ever
    with refused(what="model.bin is not a regular file", where=folder):
        verify_folder(folder)
    fresh()
    (folder / "model.bin").write_bytes(model[:-1])
    with refused(what="model.bin has 4863 bytes, but MANIFEST.json has 4864", where=folder):
        verify_folder(folder)
    (folder / "model.bin").write_bytes(model[:-1] + b"\0")
    for read in (verify_folder, read_folder):
        with refused(what="model.bin is damaged: its sha256 is not the one in MANIFEST.json", where=folder):
            read(folder)
    fresh()
    (folder / "extra").write_bytes(b"")
    with refused(what="extra is not in MANIFEST.json", where=folder):
        verify_folder(folder)
    (folder / "MANIFEST.json").unlink()
    with refused(what="MANIFEST.json is missing", where=folder):
        verify_folder(folder)
    with refused(what="there is no folder t", where=tmp_path, nearest=""):
        verify_folder(tmp_path / "t")
    with refused(what="there is no folder elsewhre", where=tmp_path, nearest="elsewhere"):
        read_folder(tmp_path / "elsewhre")


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        ({"file": {}}, "MANIFEST.json lists no files"),
        ({"files": ["a"]}, "MANIFEST.json lists no files"),
        ({"files": {"../a": {}}}, "MANIFEST.json lists '../a', which is not a plain file name"),
        ({"files": {"..": {}}}, "MANIFEST.json lists '..', which is not a plain file name"),
        ({"files": {"a": 5}}, "MANIFEST.json does not give bytes and sha256 of a"),
        ({"files": {"a": {"bytes": 1}}}, "MANIFEST.json does not give bytes and sha256 of a"),
        ({"files": {"a": {"bytes": "1", "sha256": ""}}}, "MANIFEST.json does not give bytes and sha256 of a"),
        ({"files": {"a": {"bytes": 1, "sha256": None}}}, "MANIFEST.json does not give bytes and sha256 of a"),
    ],
)
def test_a_manifest_that_is_none(tmp_path, manifest, what):
    (tmp_path / "a").write_bytes(b"x")
    write_json(tmp_path / "MANIFEST.json", manifest)
    with refused(what=what, where=tmp_path):
        verify_folder(tmp_path)


def test_no_bit_of_a_manifest_can_change(tmp_path):
    save_folder(tmp_path / "s", {"a": b"17", "b": b"", "c.json": b"x"})
    path = tmp_path / "s" / "MANIFEST.json"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(QkvError, match="MANIFEST.json"):
            verify_folder(tmp_path / "s")


def flip(path, draw):
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path, draw):
    os.truncate(path, draw.randrange(path.stat().st_size))


def delete(path, draw):
    path.unlink()


def zero_a_page(path, draw):
    data = bytearray(path.read_bytes())
    start = draw.randrange(0, len(data), 4096)
    page = len(data[start : start + 4096])
    data[start : start + page] = bytes(page)
    path.write_bytes(data)


@pytest.mark.parametrize("number", range(50))
def test_damage_is_refused_and_the_one_before_is_taken(tmp_path, number):
    draw = random.Random(number)
    files = {"model.bin": draw.randbytes(30_011), "optimizer.bin": draw.randbytes(5_003), "run.json": b'{"step": 9}'}
    for step in (7, 8, 9):
        save_folder(tmp_path / f"step-{step:08}", {**files, "step": b"%d" % step})
    name = draw.choice(["model.bin", "optimizer.bin", "run.json", "MANIFEST.json"])
    (flip, truncate, delete, zero_a_page)[number % 4](tmp_path / "step-00000009" / name, draw)
    found, problems = latest_valid_step(tmp_path)
    assert found == tmp_path / "step-00000008"
    assert read_folder(found) == {**files, "step": b"8"}
    assert [problem.where for problem in problems] == [tmp_path / "step-00000009"]
    assert name in problems[0].what


def test_latest_valid_step_is_by_number(tmp_path):
    assert latest_valid_step(tmp_path / "none") == (None, [])
    assert latest_valid_step(tmp_path) == (None, [])
    for name in ("step-00000009", "step-00000010", "step-99999999", "step-100000000"):
        save_folder(tmp_path / name, FILES)
    for name in ("step-999999999999x", "best", "step-00000010.tmp-5"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-200000000").write_bytes(b"")
    found, problems = latest_valid_step(tmp_path)
    assert found == tmp_path / "step-100000000"
    assert [problem.what for problem in problems] == ["step-200000000 is a file, but a folder is expected"]
    for step in ("step-100000000", "step-99999999", "step-00000010", "step-00000009"):
        (tmp_path / step / "MANIFEST.json").unlink()
    found, problems = latest_valid_step(tmp_path)
    assert found is None
    assert [Path(problem.where).name for problem in problems[1:]] == [
        "step-100000000",
        "step-99999999",
        "step-00000010",
        "step-00000009",
    ]


def test_stale_folders_are_removed_but_not_those_of_the_living(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    living = os.getppid()
    for name in (
        f"a.tmp-{gone.pid}",
        f"b.tmp-{os.getpid()}",
        f"c.tmp-{living}",
        "d.tmp-x",
        ".tmp-1",
        f"tmp-{gone.pid}",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"x")
    (tmp_path / f"e.json.tmp-{gone.pid}-140").write_bytes(b"x")
    (tmp_path / f"f.tmp-{10**30}").symlink_to(tmp_path / "d.tmp-x")
    removed = remove_stale(tmp_path)
    assert [path.name.split(".")[0] for path in removed] == ["a", "b", "e", "f"]
    assert set(os.listdir(tmp_path)) == {f"c.tmp-{living}", "d.tmp-x", ".tmp-1", f"tmp-{gone.pid}"}
    assert os.listdir(tmp_path / "d.tmp-x") == ["half"]
    assert remove_stale(tmp_path / "none") == []


SAVER = """
import sys
from pathlib import Path
from qkv.storage import latest_valid_step, remove_stale, save_folder

parent = Path(sys.argv[1])
remove_stale(parent)
newest, problems = latest_valid_step(parent)
step = int(newest.name[5:]) if newest else 0
while True:
    step += 1
    print(step, flush=True)
    save_folder(parent / f"step-{step:08}", {name: b"%d " % step * 50_000 for name in ("model", "optimizer", "run")})
"""


def test_kill_9_at_any_moment(tmp_path):
    draw = random.Random(5)
    late, half_written = [], 0
    for _ in range(20):
        command = [sys.executable, "-c", SAVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:
            first, second = saver.stdout.readline(), saver.stdout.readline()  # so the first is saved
            time.sleep(draw.uniform(0, 0.05))
            saver.kill()
            begun = int((first + second + saver.stdout.read()).split()[-1])
        newest, problems = latest_valid_step(tmp_path)
        assert problems == []
        saved = int(newest.name.removeprefix("step-"))
        assert read_folder(newest)["model"] == b"%d " % saved * 50_000
        late.append(begun - saved)
        half_written += len(list(tmp_path.glob("*.tmp-*")))
        for folder in sorted(tmp_path.glob("step-????????"))[:-3]:
            shutil.rmtree(folder)
    assert set(late) <= {0, 1}
    assert half_written >= 5
    remove_stale(tmp_path)
    assert list(tmp_path.glob("*.tmp-*")) == []
