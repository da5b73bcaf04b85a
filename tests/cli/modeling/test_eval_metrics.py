"""`qkv eval --metrics` and `--against`."""

import json
import sys

import pytest
import sacrebleu

from qkv.runs import load
from tests.cli.run import qkv

SHORT = ("--set", "model.max_length=8")
TINY = ("--set", "model.dim=16", "--set", "model.heads=2", "--set", "model.hidden_dim=16", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs on the same pairs with other steps and one of other units, and their file."""
    root = tmp_path_factory.mktemp("runs")
    file = root / "train.tsv"
    file.write_text("".join(f"{n}\t{' '.join(str(n))} .\n" for n in range(100, 300)))
    for name, steps, more in (
        ("one", "60", ()),
        ("two", "1", ()),
        ("letters", "1", ("--set", "data.target=characters")),
    ):
        train = ("train", "pairs", "--train-file", str(file), "--run", str(root / name), "--steps", steps)
        qkv(*train, *TINY, *SHORT, *more)
    return root


def test_metrics_are_those_of_sacrebleu_and_come_with_their_signature(folder):
    found = json.loads(qkv("eval", str(folder / "one"), "--split", "valid", "--metrics", "bleu,exact,tokens", "--json"))
    assert (found["examples"], found["resamples"], found["seed"], found["against"]) == (20, 1000, 0, None)
    _, task, model = load(folder / "one")
    answers = task.with_data().answers(model, "valid")
    score = sacrebleu.BLEU(force=True).corpus_score(answers.texts, [[own[0] for own in answers.references]])
    bleu = found["metrics"]["bleu"]
    assert bleu["value"] == pytest.approx(score.score, abs=1e-9)
    assert bleu["signature"].startswith("nrefs:1|case:mixed|")
    assert bleu["low"] <= bleu["value"] <= bleu["high"]
    plain = json.loads(qkv("eval", str(folder / "one"), "--split", "valid", "--json"))
    assert found["metrics"]["exact"]["value"] == pytest.approx(1 - plain["sequence_error_rate"])


def test_against_another_run_says_both_tests(folder):
    command = ("eval", str(folder / "one"), "--split", "valid", "--against", str(folder / "two"))
    found = json.loads(qkv(*command, "--resamples", "200", "--json"))
    against = found["against"]
    assert (against["test"], against["interval"]) == ("approximate randomization", "paired bootstrap")
    assert list(against["metrics"]) == list(found["metrics"]) == ["bleu", "chrf", "exact", "tokens"]
    for name, one in against["metrics"].items():
        assert one["difference"] == pytest.approx(found["metrics"][name]["value"] - one["value"])
        assert one["low"] <= one["difference"] <= one["high"]
    assert against["metrics"]["tokens"]["difference"] > 0.1
    assert against["metrics"]["tokens"]["p"] == 1 / 201
    assert json.loads(qkv(*command, "--resamples", "200", "--json")) == found


def test_the_table_has_intervals_and_names_its_methods(folder):
    text = qkv(
        "eval", str(folder / "one"), "--split", "valid", "--metrics", "chrf,tokens", "--against", str(folder / "two")
    )
    for word in ("95 % interval", "other run", "difference", "chrf: nrefs:1|case:mixed|eff:yes|nc:6"):
        assert word in text
    assert "20 examples; intervals by bootstrap over examples, 1,000 resamples, seed 0; difference to" in text
    assert text.rstrip().endswith("paired bootstrap, p by approximate randomization")


def test_bad_input_is_one_sentence(folder, tmp_path):
    run = str(folder / "one")
    said = qkv("eval", run, "--metrics", "bleu,crhf", code=2)
    assert said == "qkv: unknown metric 'crhf'; did you mean 'chrf'? (there are: bleu, chrf, exact, tokens)\n"
    assert "at least one, got none" in qkv("eval", run, "--metrics", ",", code=2)
    assert "--resamples must be from 1 to 100,000, got 0" in qkv(
        "eval", run, "--metrics", "exact", "--resamples", "0", code=2
    )
    assert "--seed must be 0 or more, got -1" in qkv("eval", run, "--metrics", "exact", "--seed", "-1", code=2)
    assert "--int8 is for perplexity, of runs of task text" in qkv("eval", run, "--metrics", "exact", "--int8", code=2)
    assert "words and characters, which cannot be compared" in qkv(
        "eval", run, "--split", "valid", "--against", str(folder / "letters"), "--metrics", "tokens", code=2
    )
    recall = str(tmp_path / "recall")
    qkv("train", "recall", "--run", recall, "--steps", "1", *TINY)
    said = qkv("eval", recall, "--metrics", "exact", code=2)
    assert said == (
        f"qkv: --metrics and --against are for runs that answer with texts, such as pairs; {recall} is not one\n"
    )
    assert "pronounce is a pronouncer" in qkv("eval", "pronounce", "--metrics", "exact", code=2)


def test_other_examples_are_refused(folder, tmp_path):
    file = tmp_path / "other.tsv"
    file.write_text("".join(f"{n}\t{n}\n" for n in range(500, 700)))
    other = str(tmp_path / "other")
    qkv("train", "pairs", "--train-file", str(file), "--run", other, "--steps", "1", *TINY, *SHORT)
    said = qkv("eval", str(folder / "one"), "--split", "valid", "--against", other, "--metrics", "exact", code=2)
    assert "must be evaluated on the same examples, but their inputs differ (20 and 20)" in said
    test = tmp_path / "test.tsv"
    test.write_text("123\t1 2 3 .\n124\t1 2 4 .\n")
    command = ("eval", str(folder / "one"), "--against", str(folder / "two"), "--metrics", "exact", "--json")
    assert json.loads(qkv(*command, "--test-file", str(test)))["examples"] == 2


def test_without_sacrebleu_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    said = qkv("eval", str(folder / "one"), "--split", "valid", "--metrics", "bleu", code=2)
    assert said == 'qkv: the metrics bleu and chrf need the package sacrebleu: pip install "qkv[metrics]"\n'
