import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.data import ShardOptions, Tokenizer, TokenShards, tokenize_corpus
from qkv.errors import QkvError
from tests.cli.run import ROOT
from tests.data.shards.corpora import OPTIONS, make_shards, write_corpus


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_command_again_changes_nothing(tmp_path):
    folder = make_shards(tmp_path)
    before = contents(folder)
    manifest = tokenize_corpus(str(tmp_path / "corpus"), folder, OPTIONS)
    assert contents(folder) == before
    assert manifest.tokens == len(TokenShards(folder))


def test_a_tokenizer_file_is_taken_as_it_is(tmp_path):
    corpus = str(write_corpus(tmp_path / "corpus"))
    tokenizer = Tokenizer.train(["document abc 0123456789"], "characters", 30)
    tokenizer.save(tmp_path / "own.json")
    options = replace(OPTIONS, tokenizer=str(tmp_path / "own.json"))
    tokenize_corpus(corpus, tmp_path / "shards", options)
    assert TokenShards(tmp_path / "shards").tokenizer == tokenizer
    tokenizer.save(tmp_path / "renamed.json")
    tokenize_corpus(corpus, tmp_path / "shards", replace(options, tokenizer=str(tmp_path / "renamed.json")))


def test_documents_that_are_held_out_do_not_train_the_tokenizer(tmp_path):
    (tmp_path / "corpus").mkdir()
    for split, text in (("train", "aab"), ("valid", "xa"), ("test", "yb")):
        (tmp_path / "corpus" / split).mkdir()
        (tmp_path / "corpus" / split / "a.txt").write_text(text)
    tokenize_corpus(str(tmp_path / "corpus"), tmp_path / "shards", replace(OPTIONS, size=10))
    shards = TokenShards(tmp_path / "shards")
    assert set(shards.tokenizer.to_record()["tokenizer"]["model"]["vocab"]) >= {"a", "b"}
    assert not set(shards.tokenizer.to_record()["tokenizer"]["model"]["vocab"]) & {"x", "y"}
    assert [list(shards.documents(split)) for split in ("train", "valid", "test")] == [["aab"], ["xa"], ["yb"]]


def test_a_folder_that_was_begun_with_other_settings_is_refused(tmp_path):
    folder, corpus = make_shards(tmp_path), str(tmp_path / "corpus")
    with pytest.raises(QkvError, match="the folder was begun with shard_tokens=97, not 98; choose another folder"):
        tokenize_corpus(corpus, folder, replace(OPTIONS, shard_tokens=98))
    with (tmp_path / "corpus" / "0.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(QkvError, match="begun with another corpus, or files of the corpus have changed; choose"):
        tokenize_corpus(corpus, folder, OPTIONS)
    (folder / "shards.json").rename(folder / "tokenizing.json")
    (folder / "records").mkdir()
    (folder / "records" / "000000-000.json").touch()
    with pytest.raises(QkvError, match="the folder was begun with corpus=|the folder was begun with another corpus"):
        tokenize_corpus(corpus, folder, OPTIONS)
    (folder / "tokenizing.json").unlink()
    with pytest.raises(QkvError, match="the folder must be empty or new, in "):
        tokenize_corpus(corpus, folder, OPTIONS)


def test_bad_input(tmp_path):
    folder, corpus = make_shards(tmp_path), str(tmp_path / "corpus")
    with pytest.raises(QkvError, match="the corpus is a folder of token shards already, in "):
        tokenize_corpus(str(folder), tmp_path / "x", OPTIONS)
    with pytest.raises(QkvError, match="the shards must be written outside of the corpus, in "):
        tokenize_corpus(corpus, tmp_path / "corpus" / "x", OPTIONS)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        tokenize_corpus(corpus, tmp_path / "x", OPTIONS, workers=0)
    with pytest.raises(ValueError, match="unknown tokenizer 'byte'; did you mean 'bytes'"):
        tokenize_corpus(corpus, tmp_path / "x", replace(OPTIONS, tokenizer="byte"))
    with pytest.raises(QkvError, match=r"has no column 'body' \(data\.column\); it has: text, in .*0\.jsonl"):
        tokenize_corpus(corpus, tmp_path / "x", replace(OPTIONS, column="body"))
    with pytest.raises(QkvError, match="the split valid has no document: of 60, a share of 0.0001 is held out; choose"):
        tokenize_corpus(corpus, tmp_path / "y", replace(OPTIONS, held_out=0.0001, tokenizer="bytes", size=300))
    for name, value in (("size", 0), ("shard_tokens", 0), ("sample", -1)):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
            ShardOptions(**{name: value})
    for share in (0.0, 0.5):
        with pytest.raises(ValueError, match=f"held_out must be more than 0 and below 0.5, got {share}"):
            ShardOptions(held_out=share)


def test_a_second_process_is_refused(tmp_path):
    (tmp_path / "shards").mkdir()
    lock = os.open(tmp_path / "shards", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(QkvError, match="another process is tokenizing into this folder, in "):
        make_shards(tmp_path)
    os.close(lock)


SCRIPT = """
import sys
from pathlib import Path
from qkv.data import ShardOptions, tokenize_corpus
if __name__ == "__main__":
    options = ShardOptions(tokenizer=sys.argv[3], held_out=0.05, shard_tokens=20_000)
    tokenize_corpus(sys.argv[1], Path(sys.argv[2]), options, workers=2)
"""


def children(process):
    """Return the ids of the processes whose parent this one is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == process:
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.process
def test_two_workers_that_are_killed_and_continued_write_what_one_writes(tmp_path):
    """Killed with -9 when a few shards are there: the workers end, too; what is there is not written again."""
    corpus, script = tmp_path / "corpus", tmp_path / "script.py"
    corpus.mkdir()
    for number in range(4):
        lines = (f"Line {number} {place} says what {place % 7919} lines say.\n" for place in range(30_000))
        (corpus / f"{number}.txt").write_text("".join(lines))
    script.write_text(SCRIPT)
    sample = (corpus / "0.txt").read_text()[:100_000]
    Tokenizer.train([sample], "bytes", 500).save(tmp_path / "t.json")
    command = [sys.executable, str(script), str(corpus), str(tmp_path / "two"), str(tmp_path / "t.json")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 240
    while len(list((tmp_path / "two").glob("*.tokens"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert time.monotonic() < deadline
    assert len(workers) >= 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "two").glob("*.tokens")}
    assert len(before) >= 5
    assert not (tmp_path / "two" / "shards.json").exists()
    with pytest.raises(QkvError, match="tokenizing is not finished; run the same qkv tokenize corpus again"):
        TokenShards(tmp_path / "two")
    subprocess.run(command, env=environment, check=True, timeout=300)
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "two").glob("*.tokens")}
    assert len(finished) > len(before)
    kept = [path for path in before if finished[path] == before[path]]
    assert len(kept) >= len(before) - 2  # a shard of each worker may be there without its record
    options = ShardOptions(tokenizer=str(tmp_path / "t.json"), held_out=0.05, shard_tokens=20_000)
    tokenize_corpus(str(corpus), tmp_path / "one", options)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
