import fcntl
import json
import os
import threading
import time
from array import array

import pytest
import torch

from qkv.data import Tokenizer
from qkv.data.files import token_file
from qkv.data.files.token_file import TokenFile
from qkv.data.files.token_rows import TokenRows
from qkv.errors import QkvError, QkvWarning

TEXTS = [f"document {number} " + "abc " * (number % 7) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, "characters", 40)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(token_file, "FIRST_BLOCK", 100)
    monkeypatch.setattr(token_file, "LARGEST_BLOCK", 300)


def flat(tokenizer, texts=TEXTS):
    return [number for text in texts for number in (1, *tokenizer.encode(text), 2)]


def whole(file):
    blocks = file.blocks(10**6)
    return file.read(0, blocks[-1].end).tolist()


def test_documents_are_stored_between_start_and_end(tmp_path, tokenizer):
    file = TokenFile(tmp_path, TEXTS, tokenizer)
    assert whole(file) == flat(tokenizer)
    blocks = file.blocks(10**6)
    assert [block.first for block in blocks[1:]] == [block.end for block in blocks[:-1]]
    assert blocks[-1].documents == len(TEXTS)
    for block in blocks:  # a block is whole documents
        assert file.read(block.first, 1).item() == 1
        assert file.read(block.end - 1, 1).item() == 2
    assert file.read(7, 5).tolist() == flat(tokenizer)[7:12]


def test_the_first_request_may_be_for_tokens(tmp_path, tokenizer):
    assert TokenFile(tmp_path, TEXTS, tokenizer).read(0, 5).tolist() == flat(tokenizer)[:5]


def test_a_shared_start_and_end_token_comes_once(tmp_path, tokenizer):
    text = json.dumps(tokenizer.to_record()).replace("<start>", "<|endoftext|>").replace("<end>", "<gone>")
    file = TokenFile(tmp_path, ["ab", "c"], Tokenizer.from_record(json.loads(text)))
    a, b, c = tokenizer.encode("abc")
    assert whole(file) == [1, a, b, 1, c, 1]


def test_a_complete_file_is_not_written_again(tmp_path, tokenizer):
    whole(TokenFile(tmp_path, TEXTS, tokenizer))
    assert whole(TokenFile(tmp_path, [], tokenizer)) == flat(tokenizer)


def test_blocks_can_be_read_before_the_file_is_complete(tmp_path, tokenizer):
    go = threading.Event()

    def slowly():
        yield from TEXTS[:30]
        assert go.wait(20)
        yield from TEXTS[30:]

    file = TokenFile(tmp_path, slowly(), tokenizer)
    assert file.blocks(2)[1].end < len(flat(tokenizer))
    go.set()
    assert whole(file) == flat(tokenizer)


def test_only_a_few_blocks_are_written_ahead(tmp_path, tokenizer, monkeypatch):
    """Only the requested blocks of a large corpus are tokenized, and a few ahead."""
    monkeypatch.setattr(token_file, "BLOCKS_AHEAD", 1)
    read = []
    file = TokenFile(tmp_path, (read.append(text) or text for text in TEXTS), tokenizer)
    file.blocks(1)
    entered = lambda: (tmp_path / "index").stat().st_size // token_file._ENTRY.size  # noqa: E731
    for _ in range(1000):
        if entered() > 1:
            break
        time.sleep(0.02)
    time.sleep(0.2)
    assert entered() == 2
    assert len(read) < len(TEXTS)
    assert whole(file) == flat(tokenizer)


def test_tokenizing_resumes_after_a_killed_process(tmp_path, tokenizer):
    """Half a block and half an entry are left behind; what is entered is kept."""
    whole(TokenFile(tmp_path, TEXTS, tokenizer))
    size = token_file._ENTRY.size
    index = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(index[: 3 * size + 5])
    before = (tmp_path / "tokens").read_bytes()
    (tmp_path / "tokens").write_bytes(before[:-11] + b"\x00" * 3)
    assert whole(TokenFile(tmp_path, TEXTS, tokenizer)) == flat(tokenizer)
    assert (tmp_path / "index").read_bytes() == index


def test_a_forked_process_waits_for_its_parent(tmp_path, tokenizer):
    """It has no writer thread of its own."""

    def slowly():
        for text in TEXTS:
            time.sleep(0.01)
            yield text

    file = TokenFile(tmp_path, slowly(), tokenizer)
    file.blocks(1)
    child = os.fork()
    if child == 0:
        os._exit(0 if whole(file) == flat(tokenizer) else 1)
    assert whole(file) == flat(tokenizer)
    assert os.waitpid(child, 0)[1] == 0


def test_errors_of_the_writer_thread_are_raised_in_the_reader(tmp_path, tokenizer):
    def broken():
        yield from TEXTS[:30]
        raise QkvError("the text is not UTF-8: byte 5 is 0xff", "x.txt")

    file = TokenFile(tmp_path, broken(), tokenizer)
    assert file.blocks(1)
    with pytest.raises(QkvError, match=r"the text is not UTF-8: byte 5 is 0xff, in x\.txt"):
        file.blocks(10**6)


def test_a_truncated_file(tmp_path, tokenizer):
    file = TokenFile(tmp_path, TEXTS, tokenizer)
    end = file.blocks(10**6)[-1].end
    os.truncate(tmp_path / "tokens", 20)
    with pytest.raises(QkvError, match=f"token {end:,} is missing; remove the folder to rebuild it, in "):
        file.read(0, end)


def test_large_vocabularies_use_four_bytes_per_id(tmp_path):
    class Wide:
        start, end = 70_000, 70_001

        def __len__(self):
            return 70_002

        def encode_batch(self, texts):
            return [[65_536, 3] for _ in texts]

    file = TokenFile(tmp_path, ["x"], Wide())
    assert whole(file) == [70_000, 65_536, 3, 70_001]
    assert (tmp_path / "tokens").read_bytes() == array("i", [70_000, 65_536, 3, 70_001]).tobytes()


def rows(tmp_path, tokenizer, length=11, batch=4, seed=0):
    return TokenRows(TokenFile(tmp_path, TEXTS, tokenizer), length, batch, seed)


def test_an_epoch_covers_every_target(tmp_path, tokenizer):
    """In every epoch, all tokens of a block except the first are the target of some row."""
    found = rows(tmp_path, tokenizer)
    blocks = found.file.blocks(10**6)
    in_epoch = sum(-(-(block.end - block.first - 1) // 11) for block in blocks)
    batches = [found.batch(step) for step in range(2 * in_epoch)]
    stream = [first for batch in batches for first in batch]
    for epoch in (stream[:in_epoch], stream[in_epoch : 2 * in_epoch], stream[2 * in_epoch : 3 * in_epoch]):
        covered = {first + 1 + place for first in epoch for place in range(11)}
        assert covered == {place for block in blocks for place in range(block.first + 1, block.end)}
    assert stream[:in_epoch] != sorted(stream[:in_epoch])
    assert stream[in_epoch : 2 * in_epoch] != stream[2 * in_epoch : 3 * in_epoch]


def test_the_first_epoch_goes_block_by_block(tmp_path, tokenizer):
    found = rows(tmp_path, tokenizer, batch=1)
    blocks = found.file.blocks(10**6)
    in_first = -(-(blocks[0].end - 1) // 11)
    assert all(found.batch(step)[0] < blocks[0].end for step in range(in_first))
    assert blocks[1].first <= found.batch(in_first)[0] < blocks[1].end


def test_the_order_is_a_pure_function_of_seed_and_step(tmp_path, tokenizer):
    """It does not depend on earlier requests, on how much is written, or on restarts."""
    first = rows(tmp_path / "a", tokenizer)
    forwards = [first.batch(step) for step in range(60)]
    again = rows(tmp_path / "b", tokenizer)
    assert [again.batch(step) for step in reversed(range(60))] == forwards[::-1]
    other = rows(tmp_path / "a", tokenizer, seed=1)
    assert [other.batch(step) for step in range(60)] != forwards
    assert torch.equal(first.read(forwards[3][1]), again.read(forwards[3][1]))
    assert len(first.read(forwards[3][1])) == 12


def test_bad_rows(tmp_path, tokenizer):
    with pytest.raises(QkvError, match="the text is shorter than one row of 5000 tokens"):
        rows(tmp_path, tokenizer, length=5000).batch(0)
    with pytest.raises(ValueError, match="length and batch_size must be at least 1, got 0 and 4"):
        rows(tmp_path, tokenizer, length=0)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        rows(tmp_path, tokenizer).batch(-1)


ENTRY = token_file._ENTRY.size


def flip(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    path.write_bytes(data)


def copy_of_other_tokens(folder, tokenizer):
    """The files of another corpus, complete and valid in a folder of their own."""
    other = folder.parent / "other"
    whole(TokenFile(other, TEXTS[::-1], tokenizer))
    for name in ("index", "tokens"):
        (folder / name).write_bytes((other / name).read_bytes())


def put_folder(path):
    path.unlink()
    path.mkdir()
    (path / "x").touch()


DAMAGE = {
    "a token": lambda folder, _: flip(folder / "tokens", 100),
    "the last token": lambda folder, _: flip(folder / "tokens", -1),
    "the end of a block": lambda folder, _: flip(folder / "index", ENTRY),
    "the documents of a block": lambda folder, _: flip(folder / "index", ENTRY + 8),
    "the last mark": lambda folder, _: flip(folder / "index", -40),
    "a checksum": lambda folder, _: flip(folder / "index", -1),
    "truncated": lambda folder, _: os.truncate(folder / "tokens", 20),
    "lost": lambda folder, _: (folder / "tokens").unlink(),
    "lost tokens of a part": lambda folder, _: (
        os.truncate(folder / "index", 3 * ENTRY),
        os.truncate(folder / "tokens", 0),
    ),
    "another corpus": copy_of_other_tokens,
    "tokens is a folder": lambda folder, _: put_folder(folder / "tokens"),
    "index is a folder": lambda folder, _: put_folder(folder / "index"),
    "wanted is a folder": lambda folder, _: (os.truncate(folder / "index", ENTRY), put_folder(folder / "wanted")),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_bad_input_damaged_tokens_are_written_again(tmp_path, tokenizer, what):
    folder = tmp_path / "tokens-of-a-corpus"
    whole(TokenFile(folder, TEXTS, tokenizer))
    before = (folder / "tokens").read_bytes(), (folder / "index").read_bytes()
    DAMAGE[what](folder, tokenizer)
    file = TokenFile(folder, TEXTS, tokenizer)
    with pytest.warns(QkvWarning, match="the cached tokens in .* are damaged or of another version; tokenizing again"):
        assert whole(file) == flat(tokenizer)
    wait_for_writer(file)
    assert ((folder / "tokens").read_bytes(), (folder / "index").read_bytes()) == before
    assert whole(TokenFile(folder, [], tokenizer)) == flat(tokenizer)


def wait_for_writer(file):
    if file._writer is not None:
        file._writer.join(20)


def test_bad_input_a_damaged_block_is_found_before_it_is_read(tmp_path, tokenizer):
    """Blocks are verified when they are needed: the first ones are used before the damage is found."""
    whole(TokenFile(tmp_path, TEXTS, tokenizer))
    flip(tmp_path / "tokens", -1)
    file = TokenFile(tmp_path, TEXTS, tokenizer)
    end = file.blocks(1)[0].end
    assert file.read(0, end).tolist() == flat(tokenizer)[:end]
    with pytest.warns(QkvWarning, match="tokenizing again"):
        assert file.read(3, len(flat(tokenizer)) - 3).tolist() == flat(tokenizer)[3:]


def test_bad_input_damaged_tokens_while_another_process_writes(tmp_path, tokenizer, monkeypatch):
    """It has verified them and does not write them again: one sentence after a wait."""
    whole(TokenFile(tmp_path, TEXTS, tokenizer))
    flip(tmp_path / "tokens", 5)
    monkeypatch.setattr(token_file, "REBUILD_SECONDS", 0.1)
    lock = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(QkvError, match="the cached tokens are damaged, and a process writes more; end it first"):
        TokenFile(tmp_path, TEXTS, tokenizer).blocks(1)
    os.close(lock)


def test_two_readers_of_damaged_tokens_get_the_same(tmp_path, tokenizer):
    """The one that comes second waits for the first, or verifies what it wrote."""
    whole(TokenFile(tmp_path, TEXTS, tokenizer))
    first, second = TokenFile(tmp_path, TEXTS, tokenizer), TokenFile(tmp_path, TEXTS, tokenizer)
    assert second.read(0, 5).tolist() == flat(tokenizer)[:5]
    flip(tmp_path / "tokens", -1)
    with pytest.warns(QkvWarning, match="tokenizing again"):
        assert whole(first) == flat(tokenizer)
    assert whole(second) == flat(tokenizer)
