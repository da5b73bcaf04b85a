"""Control characters of data never reach the terminal, and no error is a traceback."""

import io
import json
import re

import pytest
import torch

from qkv.cli.shared import console as console_module
from qkv.cli.shared.errors import MAX_CHARACTERS, describe_error
from qkv.cli.shared.visible import visible, visible_json
from qkv.errors import QkvError
from tests.cli.run import qkv, run

HOSTILE = "\x1b[31mred\x1b[0m\x07\x9b2J\r"
SHOWN = r"\x1b[31mred\x1b[0m\x07\x9b2J\x0d"


def test_control_characters_are_shown():
    assert visible(HOSTILE + "\ta\u00e9\n") == SHOWN + "\ta\u00e9\n"
    record = {"text": "\x7f\x9b\x1b"}
    assert json.loads(visible_json(json.dumps(record, ensure_ascii=False))) == record
    assert visible_json('"\x9b"') == r'"\u009b"'


def test_tables_and_messages_show_control_characters(monkeypatch):
    from rich.table import Table  # noqa: PLC0415 - as the commands do

    monkeypatch.setenv("TERM", "xterm-256color")
    screen = console_module.VisibleConsole(file=(out := io.StringIO()), force_terminal=True, highlight=False, width=200)
    table = Table("name", title=HOSTILE)
    table.add_row(HOSTILE)
    screen.print(table)
    screen.print(HOSTILE, markup=False)
    assert out.getvalue().count(SHOWN) == 3
    assert "\x1b[31m" not in out.getvalue()


def test_commands_print_no_escape_sequence_of_data(tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(f"2 2\nking 1 0\n\x1b[2J{'x'} 1 1\n")
    assert qkv("words", "nearest", str(vectors), "king") == "\\x1b[2Jx\t0.7071\n"
    assert "\x1b" not in run("predict", str(tmp_path / "\x1b[31m"), "a").stderr
    assert "\\x1b[31m" in run("predict", str(tmp_path / "\x1b[31m"), "a").stderr
    assert "\x1b" not in run("pronounce", "\x1b[31mword", "--format", "line").stdout


@pytest.mark.parametrize("arguments", [(f"--{HOSTILE}",), (HOSTILE,), ("cost", f"--{HOSTILE}"), ("cost", "a", HOSTILE)])
def test_wrong_use_shows_control_characters(arguments):
    done = run(*arguments)
    assert done.code == 2
    assert not set(done.stderr) & set(HOSTILE) - set(SHOWN)
    assert r"\x1b[31mred" in done.stderr


def test_bad_input_that_is_not_text_is_named():
    done = run("train", "pairs", "--train-file", "\udcff\udcfe.tsv")
    assert done.code == 2
    assert done.stderr.startswith("qkv: ")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (QkvError("it is missing", "a/b"), 2, "it is missing, in a/b"),
        (ValueError(HOSTILE), 2, re.escape(SHOWN)),
        (MemoryError(), 2, r"there is not enough memory for this \(MemoryError\)"),
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried"),
            2,
            r"not enough memory for this \(CUDA out of memory.\)",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), 2, "there is not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), 2, "the input is nested too deep"),
        (KeyError("mean"), 1, r"this is a bug in qkv: KeyError: 'mean'; QKV_TRACEBACK=1 shows where it comes from"),
        (
            RuntimeError("shape '[2]' is invalid\nmore"),
            1,
            r"this is a bug in qkv: RuntimeError: shape '\[2\]' is invalid;",
        ),
    ],
)
def test_every_error_is_a_sentence(error, code, said):
    sentence, found = describe_error(error)
    assert found == code
    assert re.search(said, sentence)
    assert "\n" not in sentence


def test_the_rank_comes_first():
    error = ValueError("it is 3")
    error.add_note("a note of a library")
    error.add_note("rank 1, step 30")
    assert describe_error(error) == ("rank 1, step 30: it is 3", 2)


def test_a_long_message_is_shortened():
    sentence, _ = describe_error(ValueError("a" * 5_000 + "z"))
    assert len(sentence) == MAX_CHARACTERS + 5
    assert sentence.endswith("aaz")


def test_a_bug_is_named_with_its_place_and_shows_its_traceback_on_request(monkeypatch):
    def fail(*_):
        raise KeyError("mean")

    monkeypatch.setattr("qkv.cli.shared.options.read_value", fail)
    command = ("train", "xor", "--set", "model.layers=1")
    done = run(*command)
    assert done.code == 1
    assert done.stderr.count("\n") == 1
    assert "this is a bug in qkv: KeyError: 'mean' (qkv/cli/shared/options.py:" in done.stderr
    monkeypatch.setenv("QKV_TRACEBACK", "1")
    with pytest.raises(KeyError):
        run(*command)
