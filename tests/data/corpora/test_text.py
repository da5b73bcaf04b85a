from itertools import islice
from pydoc_data.topics import topics

import pytest

from qkv.data import read_corpus, split_sentences
from qkv.data.corpora import text as text_module
from qkv.data.corpora.text import corpus_fingerprint
from qkv.errors import QkvError


def paragraphs(count):
    return [f"Paragraph {number} says é and nothing else, but at some length.\n\n" for number in range(count)]


def test_python_documentation_is_complete_and_without_repeats():
    parts = {name: list(documents) for name, documents in read_corpus("python").items()}
    assert sorted("".join("".join(part) for part in parts.values())) == sorted("".join(topics.values()))
    assert [len(parts[name]) > 5 for name in ("train", "valid", "test")] == [True] * 3
    assert sum(map(len, parts["train"])) > 0.85 * sum(map(len, topics.values()))
    assert parts["train"][0].startswith('The "assert" statement')


def test_documents_can_be_iterated_again():
    documents = read_corpus()["valid"]
    assert list(documents) == list(documents)
    assert len(list(islice(documents, 2))) == 2


def test_a_folder_in_the_order_of_its_names(tmp_path):
    (tmp_path / "deeper").mkdir()
    for number in range(40):
        (tmp_path / "deeper" / f"{number:02}.txt").write_text(f"file {number}")
    (tmp_path / "other.md").write_text("no text")
    parts = {name: list(documents) for name, documents in read_corpus(str(tmp_path)).items()}
    assert parts["valid"] == ["file 9", "file 29"]
    assert parts["test"] == ["file 19", "file 39"]
    assert parts["train"] == [f"file {n}" for n in range(40) if n % 20 not in (9, 19)]


def test_a_folder_with_splits(tmp_path):
    for part, texts in {"train": ["a", "b"], "valid": ["c"], "test": ["d" * 70_000]}.items():
        (tmp_path / part).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / part / f"{number}.txt").write_text(text)
    parts = {name: list(documents) for name, documents in read_corpus(str(tmp_path)).items()}
    assert parts == {"train": ["a", "b"], "valid": ["c"], "test": ["d" * 65_536, "d" * 4_464]}


def test_the_fingerprint_depends_on_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    before = corpus_fingerprint(str(tmp_path))
    assert corpus_fingerprint(str(tmp_path)) == before
    (tmp_path / "a.txt").write_text("other")
    assert corpus_fingerprint(str(tmp_path)) != before
    assert len({str(corpus_fingerprint(name)) for name in ("python", "wikitext", str(tmp_path))}) == 3


def test_a_long_file_is_split_at_blank_lines(tmp_path, monkeypatch):
    written = paragraphs(400)
    path = tmp_path / "long.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(written).replace("\n", "\r\n").encode())
    parts = {name: list(documents) for name, documents in read_corpus(str(path)).items()}
    assert all(piece.endswith("\n\n") for part in parts.values() for piece in part)
    assert sum(len(piece) for part in parts.values() for piece in part) == len("".join(written))
    assert "".join(parts["train"]).startswith("Paragraph 0 says")
    assert max(len(piece) for part in parts.values() for piece in part) <= 300
    monkeypatch.setattr(text_module, "READ_BYTES", 7)  # the split does not depend on the size of reads
    assert {name: list(documents) for name, documents in read_corpus(str(path)).items()} == parts


def test_splitting_without_blank_lines(tmp_path):
    (tmp_path / "words.txt").write_text("word " * 4000)
    (tmp_path / "letters.txt").write_text("x" * 20_000)
    words = list(read_corpus(str(tmp_path / "words.txt"))["train"])
    assert {len(piece) for piece in words[:-1]} == {300}
    assert all(piece.endswith("word ") for piece in words)
    assert {len(piece) for piece in list(read_corpus(str(tmp_path / "letters.txt"))["train"])[:-1]} == {300}


def test_nothing_beyond_the_first_documents_is_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "MIN_HELD_OUT_DOCUMENTS", 2)
    monkeypatch.setattr(text_module, "HELD_OUT_CHARACTERS", 600)
    for number in range(100):
        (tmp_path / f"{number:03}.txt").write_text(f"{number}")
    parts = {name: list(documents) for name, documents in read_corpus(str(tmp_path)).items()}
    assert parts["valid"] == ["9", "29"]
    assert parts["test"] == ["19", "39"]
    assert len(parts["train"]) == 96


def test_bad_text(tmp_path, monkeypatch):
    with pytest.raises(QkvError, match=r"there is no \.txt, \.jsonl, \.parquet or \.arrow file in the folder, in "):
        read_corpus(str(tmp_path))
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(QkvError, match=r"too short for a valid split: 9 bytes, about 6,000 are needed, in .*short"):
        read_corpus(str(tmp_path / "short.txt"))
    with pytest.raises(QkvError, match=r"there is no file shrt\.txt, in .*; did you mean short\.txt"):
        read_corpus(str(tmp_path / "shrt.txt"))
    good = "".join(paragraphs(400)).encode()
    (tmp_path / "bad.txt").write_bytes(good[:20_001] + b"\xff" + good[20_001:])
    for block in (2**18, 7):
        monkeypatch.setattr(text_module, "READ_BYTES", block)
        with pytest.raises(QkvError, match=r"the text is not UTF-8: byte 20,001 is 0xff, in .*bad\.txt"):
            list(read_corpus(str(tmp_path / "bad.txt"))["train"])
    (tmp_path / "cut.txt").write_bytes(good + "é".encode()[:1])
    with pytest.raises(QkvError, match=rf"not UTF-8: byte {len(good):,} is 0xc3, in .*cut\.txt"):
        list(read_corpus(str(tmp_path / "cut.txt"))["train"])


def test_sentences_by_hand():
    document = """ = A heading =

    Dr. Smith met J. Doe at 5 p.m. He said: "No!" Then he left (early). "Why?" asked
    somebody, e.g. Anna. It was 3.5 km away .

    ***
    A last one without an end"""
    assert split_sentences(document) == [
        "Dr. Smith met J. Doe at 5 p.m.",
        'He said: "No!"',
        "Then he left (early).",
        '"Why?" asked somebody, e.g. Anna.',
        "It was 3.5 km away .",
        "*** A last one without an end",
    ]


@pytest.mark.slow
def test_wikitext():
    """Articles of the training part and words as everybody counts them: whitespace-separated, and a line end each."""
    try:
        parts = {name: list(documents) for name, documents in read_corpus("wikitext").items()}
    except QkvError as error:
        pytest.skip(str(error))
    assert {name: len(part) for name, part in parts.items()} == {"train": 629, "valid": 60, "test": 62}
    assert parts["valid"][0].startswith(" = Homarus gammarus = \n")
    assert parts["test"][0].startswith(" = Robert Boulter = \n")
    words = {name: sum(len(text.split()) + text.count("\n") for text in part) for name, part in parts.items()}
    # published counts, less the blank line before the first article
    assert words == {"train": 2_088_628 - 1, "valid": 217_646 - 1, "test": 245_569 - 1}
