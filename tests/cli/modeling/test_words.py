"""Word vectors, as a user goes."""

import json

import pytest

from tests.cli.run import qkv
from tests.data.archives import need_word_tests


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "words"
    out = qkv("train", "words", "--run", str(folder), "--steps", "60", "--set", "model.dim=32", "--json")
    return folder, json.loads(out)


def test_train(run):
    folder, result = run
    words = result["figures"]["test"]["words"]
    assert result["parameters"] == 2 * 32 * words
    assert result["figures"]["test"]["loss"] < 3
    again = json.loads(qkv("eval", str(folder), "--json"))
    assert again["loss"] == pytest.approx(result["figures"]["test"]["loss"], rel=1e-5)


def test_nearest_and_the_file_agree(run, tmp_path):
    folder, _ = run
    found = json.loads(qkv("words", "nearest", str(folder), "class", "--best", "3", "--json"))
    assert found["word"] == "class"
    cosines = [answer["cosine"] for answer in found["answers"]]
    assert cosines == sorted(cosines, reverse=True)
    assert len(cosines) == 3
    file = tmp_path / "vectors.txt"
    saved = json.loads(qkv("words", "save", str(folder), str(file), "--json"))
    assert file.read_text().split("\n")[0] == f"{saved['words']} {saved['dim']}"
    from_file = qkv("words", "nearest", str(file), "class", "--best", "3")
    expected = "".join(f"{answer['word']}\t{answer['cosine']:.4f}\n" for answer in found["answers"])
    assert from_file == expected


@pytest.mark.slow
def test_representations(run, tmp_path):
    folder, _ = run
    wide = json.loads(qkv("words", "save", str(folder), str(tmp_path / "v"), "--vectors", "concatenation", "--json"))
    assert wide["dim"] == 64
    assert "unknown representation 'men'; did you mean 'mean'?" in qkv(
        *("words", "nearest", str(folder), "class", "--vectors", "men"), code=2
    )
    assert "--vectors mean: a file has one vector per word" in qkv(
        *("words", "nearest", str(tmp_path / "v"), "class", "--vectors", "mean"), code=2
    )


@pytest.mark.slow
def test_analogy(run):
    answers = json.loads(qkv("words", "analogy", str(run[0]), "list", "tuple", "integer", "--best", "2", "--json"))
    assert (answers["first"], answers["second"], answers["third"]) == ("list", "tuple", "integer")
    assert not {"list", "tuple", "integer"} & {answer["word"] for answer in answers["answers"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nearest", "RUN", "functoin"), "words; did you mean 'function'?"),
        (("nearest", "runs/none-such", "a"), "there is no such run folder, in runs/none-such"),
        (("save", "RUN", "nowhere/at/all.txt"), "nowhere/at"),
    ],
)
def test_bad_input(run, arguments, message):
    given = [str(run[0]) if argument == "RUN" else argument for argument in arguments]
    assert message in qkv("words", *given, code=2)


@pytest.mark.slow
def test_what_cannot_be_done_with_words(run, tmp_path):
    assert "a run of task 'words' has no attention to show" in qkv("look", str(run[0]), "class", code=2)
    assert "takes no text input" in qkv("predict", str(run[0]), "class", code=2)
    for change, message in (
        ("train.max_grad_norm=3", "train.max_grad_norm has no effect"),
        ("model.family=decoder", "got a Decoder"),
    ):
        assert message in qkv("train", "words", "--run", str(tmp_path / "x"), "--set", change, code=2)
        assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_run_of_another_task(tmp_path):
    folder = tmp_path / "xor"
    qkv("train", "xor", "--run", str(folder), "--steps", "2")
    told = qkv("words", "nearest", str(folder), "a", code=2)
    assert "is a run of task 'xor', which has no word vectors: qkv train words" in told


@pytest.mark.slow
def test_cost_and_list():
    found = json.loads(qkv("cost", "words", "--n", "3", "--m", "5", "--json"))
    assert found["multiplications"]["value"] == 3 * 5 * 100
    listed = json.loads(qkv("list", "tasks", "--json"))
    assert next(task for task in listed if task["name"] == "words")["presets"] == ["small", "wikitext", "cbow"]


@pytest.mark.slow
def test_evaluation(tmp_path):
    """A file whose vectors put four pairs of WS-353 into the order of people, and hold no analogy."""
    need_word_tests()
    file = tmp_path / "v.txt"
    words = {"tiger": (1, 0), "cat": (0.9, 0.1), "king": (0, 1), "cabbage": (-1, 0)}
    words |= {"media": (0.5, 0.5), "radio": (0.5, 0.55)}
    rows = "".join(f"{word} {x} {y}\n" for word, (x, y) in words.items())
    file.write_text(f"{len(words)} 2\n{rows}")
    record = json.loads(qkv("words", "eval", str(file), "--json"))["vectors"]["file"]
    assert record["ws353"]["pairs"] == 4  # tiger tiger 10, media radio 7.42, tiger cat 7.35, king cabbage 0.23
    assert record["ws353"]["spearman"] == pytest.approx(1.0)
    assert record["analogies"] == {"right": 0, "asked": 0, "of": 19544, "accuracy": 0.0}
    assert "4 of 353" in qkv("words", "eval", str(file))
