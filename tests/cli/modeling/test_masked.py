"""From a text to fillers and sentence vectors, as a user goes."""

import json

import pytest

from tests.cli.run import qkv, run_process
from tests.cli.run import run as run_qkv

SMALL = (
    *("--set", "data.size=600", "--set", "data.length=32", "--set", "data.examples=64"),
    *(
        "--set",
        "model.dim=24",
        "--set",
        "model.hidden_dim=32",
        "--set",
        "model.layers=1",
        "--set",
        "model.max_length=32",
    ),
    *("--set", "train.validate_every=30", "--set", "train.batch_size=16", "--device", "cpu"),
)
LONG = "[MASK] " + "the value " * 20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "bert"
    return folder, json.loads(qkv("train", "masked", *SMALL, "--steps", "30", "--run", str(folder), "--json"))


@pytest.fixture(scope="module")
def xor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "xor"
    qkv("train", "xor", "--run", str(folder), "--steps", "2", "--json")
    return folder


def test_train_and_eval_agree(run):
    folder, result = run
    figures = result["figures"]["test"]
    found = json.loads(qkv("eval", str(folder), "--json"))
    assert {name: found[name] for name in figures} == figures
    assert 0 < figures["unigram_accuracy"] < 0.2
    assert figures["examples"] == 64
    assert figures["masked_loss"] < 6.397  # log 600: it has learned more than nothing
    assert "unigram accuracy" in qkv("eval", str(folder), "--split", "valid")


def test_fillers(run):
    (found,) = json.loads(qkv("predict", str(run[0]), "the [MASK] of the [MASK]", "--best", "3", "--json"))
    assert found["input"] == "the [MASK] of the [MASK]"
    assert [len(fillers) for fillers in found["masks"]] == [3, 3]
    shares = [one["probability"] for one in found["masks"][0]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) < 1
    lines = qkv("predict", str(run[0]), "the [MASK] of the [MASK]", "--best", "3").splitlines()
    printed = [line.split("\t") for line in lines]
    assert [(row[0], row[1]) for row in printed] == [("the [MASK] of the [MASK]", mask) for mask in "111222"]
    assert [row[2] for row in printed] == [one["text"] for fillers in found["masks"] for one in fillers]
    assert found["filled"].startswith("the")


def test_a_test_file_without_pairs_is_named(run, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("There is one document. It has two sentences.\n")
    said = qkv("eval", str(run[0]), "--test-file", str(one), code=2)
    assert said.startswith("qkv: the test split of the text makes no pairs: ")
    assert said.endswith(f", in {one}\n")


def test_vectors(run):
    texts = ["a class is an object", "the value is returned"]
    found = json.loads(qkv("embed", str(run[0]), *texts, "--json"))
    assert [record["input"] for record in found] == texts
    assert sum(number**2 for number in found[0]["vector"]) == pytest.approx(1, abs=1e-5)
    (first, _) = qkv("embed", str(run[0]), *texts).splitlines()
    text, numbers = first.split("\t")
    assert text == texts[0]
    assert [float(number) for number in numbers.split()] == pytest.approx(found[0]["vector"], abs=1e-6)
    cosine = sum(a * b for a, b in zip(*(record["vector"] for record in found), strict=True))
    matrix = json.loads(qkv("embed", str(run[0]), *texts, "--similarities", "--json"))["similarities"]
    assert matrix == [pytest.approx([1, cosine], abs=1e-5), pytest.approx([cosine, 1], abs=1e-5)]
    assert f"{cosine:.3f}" in qkv("embed", str(run[0]), *texts, "--similarities")


def test_a_text_in_a_table_is_written_as_it_is(run):
    texts = ("the [/INST] sat", "see [note] here", "a [bold]value")
    table = qkv("embed", str(run[0]), *texts, "--similarities")
    assert all(text in table for text in texts)


def test_texts_from_stdin(run):
    lines = qkv("embed", str(run[0]), stdin=b"one text\n\nanother\n").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["one text", "another"]


def decode(run, *texts, stdin=b"", start=run_qkv, code=3):
    """Return (stdout, stderr); a text that cannot be answered is no wrong use, so the exit code is 3 and not 2."""
    done = start("predict", str(run[0]), *texts, stdin=stdin)
    assert done.code == code
    return done.stdout, done.stderr


BAD = {
    "no mask here": "'no mask here' has no [MASK] to fill",
    LONG: "'[MASK] the value the value the value ...' has 43 tokens with [CLS] and [SEP]; the model takes 32",
    "[mask]": "'[mask]' has no [MASK] to fill",
}
MIXED = ["no mask here", "the [MASK] of", LONG, "a [MASK] is a [MASK]", "[mask]"]


def test_a_bad_text_stops_no_other(run, monkeypatch):
    good = [text for text in MIXED if text not in BAD]
    alone = "".join(qkv("predict", str(run[0]), text, "--best", "2") for text in good)
    told = "".join(f"qkv: {BAD[text]}\n" for text in MIXED if text in BAD)
    assert decode(run, *MIXED, "--best", "2") == (alone, told)
    assert decode(run, "--best", "2", stdin="\n\n".join(MIXED).encode()) == (alone, told)
    monkeypatch.setattr("qkv.inference.Predictor.batch_size", 2)  # batches of good and bad texts, and of one sort
    assert qkv("predict", str(run[0]), *MIXED, "--best", "2", code=3) == alone


def test_bad_texts_in_json(run):
    found = json.loads(qkv("predict", str(run[0]), *MIXED, "--best", "2", "--json", code=3))
    assert [record["input"] for record in found] == MIXED
    assert [record["error"] for record in found] == [BAD.get(text) for text in MIXED]
    assert [len(record["masks"]) for record in found] == [0, 1, 0, 2, 0]
    assert [record["filled"] is None for record in found] == [text in BAD for text in MIXED]
    assert all(set(record) == {"input", "filled", "masks", "error"} for record in found)
    for record in (found[1], found[3]):
        (alone,) = json.loads(qkv("predict", str(run[0]), record["input"], "--best", "2", "--json"))
        shares = [[one.pop("probability") for fillers in x["masks"] for one in fillers] for x in (record, alone)]
        assert record == alone
        assert shares[0] == pytest.approx(shares[1], rel=1e-5)  # of other rows beside it, and so rounded otherwise


@pytest.mark.process
def test_bytes_that_are_no_text(run):
    """As an argument they cannot be read; in a line of stdin they become U+FFFD."""
    lines, told = decode(run, b"caf\xe9 [MASK]", "the [MASK]", start=run_process)
    assert [line.split("\t")[0] for line in lines.splitlines()] == ["the [MASK]"]
    assert told == "qkv: 'caf\\udce9 [MASK]' is not valid UTF-8\n"
    lines, told = decode(run, stdin=b"caf\xe9 [MASK]\nthe [MASK]\n", code=0)
    assert [line.split("\t")[0] for line in lines.splitlines()] == ["caf\ufffd [MASK]", "the [MASK]"]
    assert told == ""


def test_many_bad_texts_are_counted(run):
    lines, told = decode(run, stdin=b"nothing\n" * 31 + b"the [MASK]\n" + b"nothing\n" * 2)
    assert len(lines.splitlines()) == 1
    assert told.splitlines() == ["qkv: 'nothing' has no [MASK] to fill"] * 20 + ["qkv: 13 more inputs have no answer"]


def test_bad_input_is_one_sentence(run, xor, tmp_path):
    folder = str(run[0])
    assert "best must be 1 to 600, the size of the vocabulary, got 601" in qkv(
        "predict", folder, "no mask here", "--best", "601", code=2
    )
    assert "the model takes 32" in qkv("embed", folder, LONG, code=2)
    assert len(qkv("embed", folder, LONG, "--truncate").splitlines()) == 1
    assert qkv("eval", folder, "--split", "tset", code=2).startswith("qkv: unknown split 'tset'; did you mean 'test'?")
    assert qkv("embed", str(xor), "a", code=2) == (
        f"qkv: {xor} is a run of task 'xor'; filling and embedding need one of task 'masked'\n"
    )
    assert (
        qkv("embed", str(tmp_path / "no"), "a", code=2) == f"qkv: there is no such run folder, in {tmp_path / 'no'}\n"
    )
    assert "leave out --raw" in qkv("embed", folder, "a", "--similarities", "--raw", code=2)
    wrong = ("train", "masked", *SMALL, "--steps", "1", "--run", str(tmp_path / "run"))
    assert "Decoder does not fit this task" in qkv(*wrong, "--set", "model.family=decoder", code=2)
    too_long = qkv(*wrong, "--set", "data.length=33", code=2)
    assert "data.length=33 exceeds model.max_length=32: set both" in too_long
    assert not (tmp_path / "run").exists()
    assert "there is no file nowhere.txt" in qkv(*wrong, "--set", "data.source=nowhere.txt", code=2)
