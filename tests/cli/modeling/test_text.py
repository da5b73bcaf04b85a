"""A language model from the command line: trained, judged, asked to write; and what is said of bad input."""

import json

import pytest
import torch

from qkv import runs
from qkv.data import Tokenizer
from qkv.inference import measure_perplexity
from qkv.interop import save_gpt2
from qkv.models import Decoder, DecoderConfig
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv
from tests.runs.sealing import reseal

MODEL = ("--set", "model.dim=16", "--set", "model.hidden_dim=16", "--set", "model.layers=1", "--set", "model.heads=2")
DATA = ("--set", "data.tokenizer=characters", "--set", "data.length=32", "--set", "model.max_length=100")
TRAIN = ("--steps", "4", "--set", "train.validate_every=2", "--set", "train.batch_size=4")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text("".join(f"Line {number} has a few words, and more é.\n\n" for number in range(250)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("runs") / "text"
    told = json.loads(
        qkv("train", "text", "--run", str(folder), "--train-file", str(corpus), *MODEL, *DATA, *TRAIN, "--json")
    )
    assert set(told["figures"]["test"]) == {
        "tokens", "words", "loss", "perplexity", "word_perplexity", "bits_per_byte",
    }  # fmt: skip
    return folder


def test_eval(run, corpus, tmp_path):
    figures = json.loads(qkv("eval", str(run), "--json"))
    other = tmp_path / "other.txt"
    other.write_text("One two.\n")
    found = json.loads(qkv("eval", str(run), "--test-file", str(other), "--json"))
    assert (found["tokens"], found["words"]) == (10, 3)
    assert figures["tokens"] > 100


def test_eval_of_an_empty_text_is_refused(run, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    said = qkv("eval", str(run), "--test-file", str(empty), code=2)
    assert said == f"qkv: --test-file must not be empty, in {empty}\n"


@pytest.mark.parametrize(("positions", "length"), [(64, 64), (200, 128)])
def test_eval_of_a_hugging_face_folder(corpus, tmp_path, positions, length):
    """Its figures are those of rows of 128 tokens, or of as many as the model takes."""
    tokenizer = Tokenizer.train([corpus.read_text()], "bytes", 270)
    torch.manual_seed(0)
    config = DecoderConfig(dim=24, heads=3, hidden_dim=29, layers=1, positions="learned", max_length=positions)
    model = Decoder(config, len(tokenizer)).eval()
    save_gpt2(model, tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    found = json.loads(qkv("eval", str(tmp_path), "--test-file", str(corpus), "--json"))
    expected = measure_perplexity(model, tokenizer, [corpus.read_text()], length, length // 2)
    assert found["tokens"] == expected.tokens
    assert found["perplexity"] == pytest.approx(expected.per_token, rel=1e-4)


def test_writing(run):
    whole = json.loads(qkv("predict", str(run), "Line 3", "--tokens", "7", "--search", "greedy", "--json"))
    (answer,) = whole[0]["answers"]
    assert answer["tokens"] + answer["finished"] <= 7
    assert qkv("predict", str(run), "Line 3", "--tokens", "7", "--search", "greedy") == f"Line 3{answer['text']}\n"
    beams = json.loads(
        qkv("predict", str(run), "Line", "--tokens", "4", "--search", "beam", "--beams", "3", "--best", "2", "--json")
    )
    scores = [one["log_probability"] for one in beams[0]["answers"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)


def test_a_prompt_of_stdin_is_read_as_a_text_to_train_on(run):
    """Without the mark of byte order, and with the newlines that the training text had."""
    prompt = b"\xef\xbb\xbfLine 3\r\nLine\rLine 4\r\n"
    (record,) = json.loads(qkv("predict", str(run), "--tokens", "2", "--search", "greedy", "--json", stdin=prompt))
    assert record["input"] == "Line 3\nLine\nLine 4"


def test_several_answers_need_a_beam(run):
    said = qkv("predict", str(run), "Line 3", "--best", "2", code=2)
    assert said == "qkv: --best 2 needs --search beam: sample gives one answer\n"


def test_a_run_with_itself_is_judged_as_alone(run):
    alone, twice = (json.loads(qkv("eval", str(run), *more, "--json")) for more in ((), ("--with", str(run))))
    assert twice["tokens"] == alone["tokens"]
    assert twice["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-5)


def test_bad_input(run, corpus, tmp_path):
    said = qkv("predict", str(run), "x" * 99, "--tokens", "10", code=2)
    assert said == (
        "qkv: the prompt has 100 tokens with the start token, and 10 more exceed the model's max_length=100\n"
    )
    bad = tmp_path / "bad.txt"
    text = corpus.read_bytes()
    bad.write_bytes(text[:5000] + b"\xff\xfe" + text[5000:])
    said = qkv("train", "text", "--train-file", str(bad), "--run", str(tmp_path / "a"), *MODEL, *DATA, *TRAIN, code=2)
    assert said == f"qkv: the text is not UTF-8: byte 5,000 is 0xff, in {bad}\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    said = qkv("train", "text", "--train-file", str(empty), "--run", str(tmp_path / "b"), code=2)
    assert said == f"qkv: there is no .txt, .jsonl, .parquet or .arrow file in the folder, in {empty}\n"
    missing = f"data.tokenizer={tmp_path / 'none.json'}"
    said = qkv("train", "text", "--set", missing, "--run", str(tmp_path / "c"), code=2)
    assert said.startswith("qkv: there is no file none.json, in ")
    other = tmp_path / "tokenizer.json"
    qkv("tokenize", "train", str(corpus), "--kind", "characters", "--size", "20", "--out", str(other))
    vocabulary = run / "vocabulary.json"
    kept = vocabulary.read_text()
    vocabulary.write_text(json.dumps({"format": 1, "tokenizer": json.loads(other.read_text())}))
    reseal(run)
    said = qkv("predict", str(run), "x", code=2)
    vocabulary.write_text(kept)
    reseal(run)
    assert said == "qkv: the tokenizer in vocabulary.json is not the one that the model was trained with\n"


def test_tokenize(tmp_path, corpus):
    out = tmp_path / "tok.json"
    made = json.loads(qkv("tokenize", "train", str(corpus), "--size", "270", "--out", str(out), "--json"))
    assert made["size"] == 270
    found = json.loads(qkv("tokenize", "encode", str(out), "a few [x]", "--json"))
    assert found["decoded"] == "a few [x]"
    assert qkv("tokenize", "encode", str(out), "a few [x]").splitlines()[1] == " ".join(map(str, found["ids"]))
    assert qkv("tokenize", "decode", str(out), *map(str, found["ids"])) == "a few [x]\n"
    assert "there is no folder" in qkv("tokenize", "train", "--out", str(tmp_path / "no" / "t.json"), code=2)
    assert "did you mean 'bytes'" in qkv("tokenize", "train", str(corpus), "--kind", "byte", code=2)
    assert "there is no file tik.json" in qkv("tokenize", "encode", str(tmp_path / "tik.json"), "x", code=2)


def test_bad_input_of_a_temperature_is_an_error_before_the_prompt_is_printed(run):
    done = run_qkv("predict", str(run), "Line", "--temperature", "0")
    assert (done.code, done.stdout) == (2, "")
    assert "temperature must be finite and above 0" in done.stderr


@pytest.fixture(scope="module")
def small_run(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("runs") / "small"
    smaller = ("--set", "model.attention=linear", "--set", "model.dim=8")
    data = ("--run", str(folder), "--train-file", str(corpus))
    qkv("train", "text", *data, *MODEL, *DATA, *TRAIN, *smaller, "--json")
    return folder


def test_a_draft_changes_nothing_but_the_time(run, small_run):
    given = ("predict", str(run), "Line 1 has", "--tokens", "12", "--search", "greedy")
    expected = qkv(*given)
    for draft in ("ngram", str(small_run), str(run)):
        assert qkv(*given, "--draft", draft) == expected


def test_drafts_that_do_not_fit(run, tmp_path, corpus):
    given = ("predict", str(run), "Line", "--tokens", "5")
    said = qkv(*given, "--search", "beam", "--draft", "ngram", code=2)
    assert said == "qkv: --draft has no effect with --search beam; it needs --search greedy or sample\n"
    assert "there is no such run folder" in qkv(*given, "--draft", str(tmp_path / "none"), code=2)
    other, text = tmp_path / "other", tmp_path / "other.txt"
    text.write_text("0123456789 " * 500 + "\n\n" + "9876 " * 500 + "\n\n" + "5 " * 900)
    qkv("train", "text", "--run", str(other), "--train-file", str(text), *MODEL, *DATA, *TRAIN, "--json")
    said = qkv(*given, "--draft", str(other), code=2)
    assert "the draft has another vocabulary than the run" in said
    said = qkv(*given, "--with", str(run), "--draft", "ngram", code=2)
    assert "model must have extend, as Decoder has, to verify a draft, got Ensemble" in said


def test_texts_of_a_run_from_python(run, small_run):
    expected = qkv("predict", str(run), "Line 1 has", "--tokens", "12", "--search", "greedy")
    generator = runs.load_generator(run, cache_bytes=10**6, draft=small_run)
    for _ in range(2):
        text = "".join(generator.generate("Line 1 has", tokens=12, search="greedy"))
        assert "Line 1 has" + text + "\n" == expected
    assert generator.prefix_cache.statistics().tokens_prefilled > 0
    plain = runs.load_generator(run)
    assert (plain.prefix_cache, plain.draft) == (None, None)
    drawn = "".join(plain.generate("Line 1 has", tokens=12, seed=3, top_k=5))
    sampling = ("--search", "sample", "--seed", "3", "--top-k", "5")
    assert "Line 1 has" + drawn + "\n" == qkv("predict", str(run), "Line 1 has", "--tokens", "12", *sampling)
    with pytest.raises(ValueError, match="--top-k has no effect with --search greedy"):
        list(plain.generate("Line", search="greedy", top_k=5))
    with pytest.raises(ValueError, match="unknown search 'beam'"):
        list(plain.generate("Line", tokens=3, search="beam"))


def test_eval_with_int8_shows_both(run):
    found = json.loads(qkv("eval", str(run), "--int8", "--json"))
    plain = json.loads(qkv("eval", str(run), "--json"))
    assert {name: found[name] for name in plain} == plain
    assert found["int8"].keys() == {"tokens", "words", "loss", "perplexity", "word_perplexity", "bits_per_byte"}
    assert found["int8"]["perplexity"] != found["perplexity"]
    assert found["int8"]["perplexity"] == pytest.approx(found["perplexity"], rel=0.01)
    printed = qkv("eval", str(run), "--int8")
    change = found["int8"]["perplexity"] / found["perplexity"] - 1
    assert f"int8: perplexity {change:+.2%}" in printed


def test_predict_with_int8(run):
    options = ("--tokens", "5", "--search", "greedy", "--json")
    plain, rounded = (json.loads(qkv("predict", str(run), "Line", *options, *more)) for more in ((), ("--int8",)))
    first, second = (one[0]["answers"][0]["log_probability"] for one in (plain, rounded))
    assert first != second
    assert second == pytest.approx(first, rel=0.02)


def test_int8_is_for_decoders():
    said = qkv("eval", "pronounce", "--int8", code=2)
    assert said == "qkv: --int8 is for runs of task text; pronounce is not one\n"
