"""A test text with characters that the tokenizer does not know."""

import pytest

from qkv import tasks
from qkv.data import Tokenizer
from qkv.tasks.unknown_characters import unknown_characters

TEXT = "the cat sat on the mat\n" * 20


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("characters", "that mat", []),
        ("characters", "thät mät é", ["3 of 10 characters of the test text are unknown to the tokenizer: 'ä', 'é'"]),
        ("bytes", "thät", []),
        ("wordpiece", "thЖt", ["1 of 4 characters of the test text are unknown to the tokenizer: 'Ж'"]),
    ],
)
def test_unknown_characters_are_named(kind, text, said):
    found = unknown_characters(Tokenizer.train([TEXT], kind, 300), [text])
    assert [sentence.partition(";")[0] for sentence in found] == said


def test_the_list_is_short():
    (sentence,) = unknown_characters(Tokenizer.train([TEXT], "characters"), ["0123456789"])
    assert "'0', '1', '2', '3', '4', '5', '6', '7' and 2 more" in sentence


@pytest.mark.parametrize(
    ("kind", "options"),
    [("text", {"tokenizer": "characters"}), ("masked", {"size": 100})],
)
def test_a_test_file_gives_a_warning_and_the_own_text_none(tmp_path, kind, options):
    (tmp_path / "corpus.txt").write_text(TEXT * 20)
    other = tmp_path.parent / f"{tmp_path.name}-other.txt"
    other.write_text(TEXT + "Ж")
    task = tasks.tasks[kind].load({"source": str(tmp_path), **options})
    assert task.warnings == ()
    (warning,) = task.with_test_file(str(other)).warnings
    assert "unknown to the tokenizer: 'Ж'" in warning
