import json
import sys

import pytest

from qkv.data import ShardOptions, TokenShards, read_corpus, tokenize_corpus
from qkv.data.corpora.text import read_documents
from qkv.data.files import arrow
from qkv.data.shards.pieces import list_pieces
from qkv.errors import QkvError

TEXTS = [f"row {number} of the table, é" for number in range(700)]


@pytest.fixture(scope="module")
def pyarrow():
    found = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    return found


def write(pyarrow, path, texts, column="text", kind="stream", rows=100):
    """Write a table of numbers and texts."""
    path.parent.mkdir(exist_ok=True, parents=True)
    texts = texts if isinstance(texts, pyarrow.Array) else pyarrow.array(texts)
    table = pyarrow.table({"id": list(range(len(texts))), column: texts})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=rows)
        return
    make = pyarrow.ipc.new_stream if kind == "stream" else pyarrow.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_the_texts_of_a_column(tmp_path, pyarrow, kind, monkeypatch):
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write(pyarrow, path, [*TEXTS, "", None, " \n"], "body", kind)
    assert list(read_documents(str(path), "body")) == TEXTS
    monkeypatch.setattr(arrow, "ROWS", 7)
    assert list(read_documents(str(tmp_path), "body")) == TEXTS


def test_types_of_texts(tmp_path, pyarrow):
    values = pyarrow.array(["b", "a", "b"])
    for number, one in enumerate(
        (values, values.cast(pyarrow.large_string()), values.cast(pyarrow.string_view()), values.dictionary_encode())
    ):
        write(pyarrow, tmp_path / f"{number}.arrow", one)
        assert list(read_documents(str(tmp_path / f"{number}.arrow"))) == ["b", "a", "b"]


def test_row_groups_are_cut_into_pieces(tmp_path, pyarrow):
    write(pyarrow, tmp_path / "a.parquet", TEXTS)
    size = arrow.parquet_group_sizes(tmp_path / "a.parquet")
    assert len(size) == 7
    found = list_pieces(str(tmp_path), 2 * max(size))
    assert [(part.start, part.end) for piece in found for part in piece.parts] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert list(arrow.read_parquet(tmp_path / "a.parquet", "text", 2, 4)) == TEXTS[200:400]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_folder_becomes_shards(tmp_path, pyarrow, suffix):
    """With the splits of a saved dataset; a column is chosen."""
    for split, texts in (("train", TEXTS[:500]), ("validation", TEXTS[500:600]), ("test", TEXTS[600:])):
        write(pyarrow, tmp_path / "data" / split / f"data-00000-of-00001.{suffix}", texts, "body")
    (tmp_path / "data" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    options = ShardOptions(size=300, column="body", shard_tokens=2000)
    tokenize_corpus(str(tmp_path / "data"), tmp_path / "shards", options)
    shards = TokenShards(tmp_path / "shards")
    assert list(shards.documents("train")) == TEXTS[:500]
    assert list(shards.documents("valid")) == TEXTS[500:600]
    assert list(shards.documents("test")) == TEXTS[600:]
    texts = read_corpus(str(tmp_path / "data"), "body")
    assert list(texts["valid"]) == TEXTS[500:600]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_bad_input(tmp_path, pyarrow, suffix):
    path = tmp_path / f"a.{suffix}"
    write(pyarrow, path, TEXTS, "texts")
    with pytest.raises(QkvError, match=r"no column 'text' \(data\.column\) but id, texts, in .*; did you mean texts"):
        list(read_documents(str(path)))
    with pytest.raises(QkvError, match=r"the column 'id' must hold texts, but holds int64, in .*a\."):
        list(read_documents(str(path), "id"))
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"no table at all, but a text", b"ARROW1 and no more"):
        path.write_bytes(damaged)
        with pytest.raises(QkvError, match=rf"the file is damaged or not what its name says \(.*\), in .*a\.{suffix}"):
            list(read_documents(str(path), "texts"))


def test_bad_input_a_text_that_is_not_utf_8(tmp_path, pyarrow):
    broken = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pyarrow.py_buffer(b"a\xff")]
    )
    write(pyarrow, tmp_path / "a.arrow", broken)
    with pytest.raises(QkvError, match=r"a text is not UTF-8 \(invalid start byte\), in .*a\.arrow"):
        list(read_documents(str(tmp_path)))


def test_bad_input_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).touch()
        sentence = r'^Parquet and Arrow files need the package pyarrow: pip install "qkv\[arrow\]"$'
        with pytest.raises(QkvError, match=sentence):
            list(read_documents(str(tmp_path / name)))
    with pytest.raises(QkvError, match="need the package pyarrow"):
        list_pieces(str(tmp_path / "a.parquet"), 5)
