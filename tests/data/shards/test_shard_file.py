import errno
import os
import struct
from hashlib import sha256

import numpy as np
import pytest

from qkv.data.shards import shard_file
from qkv.data.shards.shard_file import ShardEntry, ShardFile, ShardWriter, shard_bytes, token_bytes
from qkv.errors import QkvError

TOKENIZER = sha256(b"a tokenizer").hexdigest()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(shard_file, "CHUNK_BYTES", 20)


def write(path, count=47, width=2):
    """Write 0, 3, 6, ... in parts of different sizes."""
    writer = ShardWriter(path, width, TOKENIZER)
    ids = 3 * np.arange(count)
    for part in np.split(ids, [0, 5, 6, 31]):
        writer.append(part)
    return ShardEntry(path.name, count, 1, writer.commit())


def test_the_bytes_are_ids_checksums_and_an_end(tmp_path):
    entry = write(tmp_path / "a.tokens")
    ids = struct.pack("<47H", *range(0, 141, 3))
    digests = b"".join(sha256(ids[first : first + 20]).digest() for first in range(0, 94, 20))
    end = struct.pack("<8sQI32s", b"QKVTOKS1", 47, 2, bytes.fromhex(TOKENIZER))
    assert (tmp_path / "a.tokens").read_bytes() == ids + digests + end
    assert entry.sha256 == sha256(digests + end).hexdigest()
    assert shard_bytes(47, 2) == len(ids + digests + end)


@pytest.mark.parametrize(("width", "count"), [(2, 47), (4, 50), (2, 10)])
def test_any_range_can_be_read(tmp_path, width, count):
    entry = write(tmp_path / "a.tokens", count, width)
    file = ShardFile(tmp_path, entry, width, TOKENIZER)
    for first, taken in ((0, count), (count - 1, 1), (3, 5), (7, 0)):
        assert file.read(first, taken).tolist() == list(range(3 * first, 3 * (first + taken), 3))
    file.close()


def test_only_the_chunks_that_are_read_are_verified(tmp_path):
    entry = write(tmp_path / "a.tokens")
    data = bytearray((tmp_path / "a.tokens").read_bytes())
    data[41] ^= 4
    (tmp_path / "a.tokens").write_bytes(data)
    file = ShardFile(tmp_path, entry, 2, TOKENIZER)
    assert file.read(10, 10).tolist() == list(range(30, 60, 3))
    with pytest.raises(QkvError, match=r"a\.tokens is damaged: bytes 40 to 60 do not match their checksum, in "):
        file.read(19, 2)
    file.close()


def flip(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    path.write_bytes(data)


END = 8 + 8 + 4 + 32
DAMAGE = {
    "missing": (lambda path: path.unlink(), r"there is no file a\.tokens"),
    "cut off": (lambda path: os.truncate(path, 100), r"a\.tokens has 100 bytes, but its 47 tokens need 306: it is dam"),
    "a checksum": (lambda path: flip(path, 95), r"a\.tokens is damaged or of another corpus: its checksum is not the"),
    "the magic": (lambda path: flip(path, -END), r"a\.tokens is damaged or no shard of tokens"),
    "the number of tokens": (lambda path: flip(path, -END + 8), r"a\.tokens is damaged or no shard of tokens"),
    "the tokenizer": (
        lambda path: flip(path, -1),
        r"a\.tokens was written with another tokenizer than tokenizer\.json",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_bad_input_is_found_when_a_shard_is_opened(tmp_path, what):
    entry = write(tmp_path / "a.tokens")
    damage, sentence = DAMAGE[what]
    damage(tmp_path / "a.tokens")
    with pytest.raises(QkvError, match=sentence):
        ShardFile(tmp_path, entry, 2, TOKENIZER)


def test_bad_input_a_shard_that_is_cut_off_while_it_is_read(tmp_path):
    file = ShardFile(tmp_path, write(tmp_path / "a.tokens"), 2, TOKENIZER)
    os.truncate(tmp_path / "a.tokens", 50)
    with pytest.raises(QkvError, match=r"a\.tokens ends at byte 50, before 60, in "):
        file.read(20, 10)
    file.close()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    writer = ShardWriter(tmp_path / "a.tokens", 2, TOKENIZER)
    writer.append(np.arange(3))
    with pytest.raises(QkvError, match=r"cannot save a\.tokens \(No space left on device\): 84 bytes are needed"):
        writer.commit()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_large_vocabularies_use_four_bytes():
    assert [token_bytes(size) for size in (2, 65_536, 65_537)] == [2, 2, 4]
