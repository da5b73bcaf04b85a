import gzip
import json

import pytest

from qkv.data import read_corpus
from qkv.data.corpora import corpus_files
from qkv.data.corpora.corpus_files import FileRange, file_format, find_splits, list_corpus_files, read_rows
from qkv.data.corpora.text import read_documents
from qkv.errors import QkvError


def write_lines(path, texts, column="text"):
    path.parent.mkdir(exist_ok=True, parents=True)
    data = "".join(json.dumps({"id": number, column: text}) + "\n" for number, text in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_rows_are_documents(tmp_path):
    """Line ends in them stay; empty ones and null are left out; a long one is split into documents."""
    write_lines(tmp_path / "a.jsonl", ["one\n\ntwo", "", None, "é" * 70_000])
    write_lines(tmp_path / "b.jsonl.gz", ["three"])
    found = list(read_documents(str(tmp_path)))
    assert found == ["one\n\ntwo", "é" * 65_536, "é" * 4_464, "three"]


def test_every_20th_row_is_held_out(tmp_path):
    write_lines(tmp_path / "a.jsonl", [f"row {number}" for number in range(40)], "body")
    parts = {name: list(documents) for name, documents in read_corpus(str(tmp_path / "a.jsonl"), "body").items()}
    assert parts["valid"] == ["row 9", "row 29"]
    assert parts["test"] == ["row 19", "row 39"]
    assert len(parts["train"]) == 36


def test_a_compressed_text_is_read_as_the_text(tmp_path):
    text = "A line with é.\r\n\r\n" * 1000
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = (list(read_documents(str(tmp_path / name))) for name in ("a.txt", "b.txt.gz"))
    assert plain == packed
    assert "".join(plain) == text.replace("\r\n", "\n")


def test_a_range_has_the_lines_that_begin_in_it(tmp_path):
    write_lines(tmp_path / "a.jsonl", ["zero", "one", "two"])
    first = len(b'{"id": 0, "text": "zero"}\n')
    path = tmp_path / "a.jsonl"
    assert list(read_rows(FileRange(path, 0, first), "text")) == ["zero"]
    assert list(read_rows(FileRange(path, first, first + 1), "text")) == ["one"]
    assert list(read_rows(FileRange(path, first), "text")) == ["one", "two"]


def test_formats_by_name(tmp_path):
    names = {"a.txt": "text", "a.md": "text", "a.TXT.GZ": "text", "a.jsonl.gz": "lines", "a.PARQUET": "parquet"}
    assert {name: file_format(tmp_path / name) for name in names} == names


@pytest.mark.parametrize("name", ["valid", "validation"])
def test_splits_are_subfolders(tmp_path, name):
    for split in ("train", name, "test"):
        write_lines(tmp_path / split / "a.jsonl", [split])
    assert {split: list(documents) for split, documents in read_corpus(str(tmp_path)).items()} == {
        "train": ["train"],
        "valid": [name],
        "test": ["test"],
    }


def test_a_subfolder_validation_of_plain_texts_is_no_split(tmp_path):
    """So it was before files with columns were read."""
    for split in ("train", "validation", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.txt").write_text(split)
    assert find_splits(str(tmp_path)) is None


BAD_LINES = {
    "not JSON": (b"{", r"the line at byte 14 is not JSON \(.*\), in .*a\.jsonl"),
    "too deep": (b"[" * 100_000, r"the line at byte 14 is not JSON"),
    "no object": (b"[1]", "the line at byte 14 must be a JSON object, but is a list"),
    "no column": (
        b'{"body": "x", "id": 3}',
        r"line at byte 14 has no column 'text' \(data\.column\); it has: body, id",
    ),
    "a number": (b'{"text": 3}', "the column 'text' must hold texts, but the line at byte 14 has a int"),
    "not UTF-8": (b'{"text": "\xff"}', "the line at byte 14 is not UTF-8: its byte 10 is 0xff"),
    "half a character": (b'{"text": "\\ud800"}', r"the line at byte 14 has half a character \(a lone surrogate\)"),
    "too long": (b'{"text": "' + b"x" * 500_000, "the line at byte 14 is longer than 300,000 bytes"),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_bad_input_lines(tmp_path, monkeypatch, what):
    monkeypatch.setattr(corpus_files, "MAX_LINE_BYTES", 300_000)
    line, sentence = BAD_LINES[what]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with pytest.raises(QkvError, match=sentence):
        list(read_documents(str(tmp_path)))


def test_bad_input_folders(tmp_path):
    with pytest.raises(QkvError, match=r"there is no \.txt, \.jsonl, \.parquet or \.arrow file in the folder, in "):
        list_corpus_files(str(tmp_path))
    write_lines(tmp_path / "b.jsonl", ["a"])
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(QkvError, match=r"must have files of one format, but there are .*a\.txt and .*b\.jsonl"):
        list_corpus_files(str(tmp_path))
    with pytest.raises(QkvError, match="the text is too short for a valid split: 20 documents are needed, in "):
        read_corpus(str(tmp_path / "b.jsonl"))
    with pytest.raises(ValueError, match=r"column=body has no effect on .*a\.txt: a plain text has no columns"):
        read_corpus(str(tmp_path / "a.txt"), "body")


@pytest.mark.parametrize("keep", [30, 200])
def test_bad_input_gzip_data_that_is_cut_off(tmp_path, keep):
    write_lines(tmp_path / "a.jsonl.gz", [f"text {number} " * 3 for number in range(1000)])
    (tmp_path / "a.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:keep])
    with pytest.raises(QkvError, match=r"the gzip data is damaged or cut off \(.*\), in .*a\.jsonl\.gz"):
        list(read_documents(str(tmp_path)))


def test_bad_input_no_gzip_data(tmp_path):
    (tmp_path / "a.txt.gz").write_text("plain")
    with pytest.raises(QkvError, match=r"the gzip data is damaged or cut off \(Not a gzipped file"):
        list(read_documents(str(tmp_path)))


def save_state(folder, files):
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))


def test_a_saved_dataset_lists_its_files(tmp_path):
    """Other .arrow files in its folder are caches."""
    for name in ("data-0.arrow", "data-1.arrow", "cache-123.arrow"):
        (tmp_path / name).touch()
    save_state(tmp_path, [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}])
    assert [path.name for path in list_corpus_files(str(tmp_path))] == ["data-1.arrow", "data-0.arrow"]
    save_state(tmp_path, [{"filename": "data-2.arrow"}])
    with pytest.raises(QkvError, match=r"there is no file data-2\.arrow, in .*; did you mean data-"):
        list_corpus_files(str(tmp_path))
    for files in ([], [{"filename": "../x.arrow"}], [{"filename": 3}], 5):
        save_state(tmp_path, files)
        with pytest.raises(QkvError, match=r"state\.json must list \.arrow files under _data_files"):
            list_corpus_files(str(tmp_path))


def test_a_saved_dataset_without_a_validation_split(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(QkvError, match=r"must have the splits train, valid \(or validation\) and test, but there is "):
        find_splits(str(tmp_path))
