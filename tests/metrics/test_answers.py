"""Scores of texts against sacreBLEU's own functions, and against counts by hand."""

import sys
from dataclasses import replace

import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from qkv.errors import QkvError
from qkv.metrics import Answers, compare_answers, require_metrics, score_answers

REFERENCES = ["The cat sat on the mat.", "He reads a book, slowly.", "It rains today.", "Where are you going now?"]
TEXTS = ["The cat sat on a mat.", "He reads a book slowly.", "It rains today.", "Where do you go?"]
WORSE = ["A dog sat.", "He reads books.", "It rains today.", "Who?"]


def answers(texts, references=None, unit="words"):
    references = [[one] for one in REFERENCES] if references is None else references
    words = [text.split() for text in texts]
    return Answers(
        REFERENCES[: len(texts)], texts, references, words, [[one.split() for one in own] for own in references], unit
    )


def test_bleu_and_chrf_are_sacrebleu_s():
    found = score_answers(answers(TEXTS), ["bleu", "chrf"], resamples=5)
    assert found["bleu"].value == pytest.approx(sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score, abs=1e-12)
    assert found["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(TEXTS, [REFERENCES]).score, abs=1e-12)
    version = f"version:{sacrebleu.__version__}"
    assert found["bleu"].signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert found["chrf"].signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"


def test_several_references_of_a_text_count_as_sacrebleu_counts_them():
    references = [[REFERENCES[0], TEXTS[0]], [REFERENCES[1]], ["It is raining.", REFERENCES[2]], [REFERENCES[3]]]
    found = score_answers(answers(TEXTS, references), ["bleu", "exact", "tokens"], resamples=5)
    streams = [[own[0] for own in references], [TEXTS[0], None, REFERENCES[2], None]]
    assert found["bleu"].value == pytest.approx(sacrebleu.corpus_bleu(TEXTS, streams).score, abs=1e-12)
    assert found["bleu"].signature.startswith("nrefs:var|")
    assert found["exact"].value == 2 / 4
    # places: 6 of 6, 4 of 5, 3 of 3, 2 of 5: "Where do you go?" against "Where are you going now?"
    assert found["tokens"].value == (6 + 4 + 3 + 2) / (6 + 5 + 3 + 5)


def test_exact_match_and_token_accuracy_by_hand():
    given = answers(["a b", "a", "", "x y z"], [["a b"], ["a c"], ["b"], ["x"]])
    found = score_answers(given, ["exact", "tokens"], resamples=5)
    assert found["exact"].value == 1 / 4
    assert found["tokens"].value == (2 + 1 + 0 + 1) / (2 + 2 + 1 + 3)
    assert score_answers(answers([""], [[""]]), ["tokens"], resamples=5)["tokens"].value == 1


def test_the_interval_of_bleu_is_that_of_sacrebleu_s_bootstrap():
    texts, references = TEXTS * 25 + WORSE * 25, REFERENCES * 50
    given = Answers(references, texts, [[one] for one in references], texts, [[one] for one in references], "words")
    ours = score_answers(given, ["bleu"], resamples=1000)["bleu"]
    theirs = sacrebleu.BLEU(force=True).corpus_score(texts, [references], n_bootstrap=1000)
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs._ci, rel=0.1)
    assert ours.low < ours.value < ours.high


def test_p_is_that_of_sacrebleu_s_randomization():
    references = [f"{one} {n} {n + 1} {n * n}" for n, one in enumerate(REFERENCES * 10)]
    texts = [one.replace(" a ", " ").replace("2", "3") for one in references]
    others = [one.replace("3", "x").replace("7", "y").replace("1", "2") for one in references]
    first, second = (
        Answers(references, own, [[one] for one in references], own, [[one] for one in references], "words")
        for own in (texts, others)
    )
    ours = compare_answers(first, second, ["bleu"], resamples=2000)["bleu"]
    metric = {"BLEU": sacrebleu.BLEU(force=True)}
    _, results = PairedTest([("first", texts), ("second", others)], metric, [references], "ar", 2000)()
    theirs = results["BLEU"][1]
    assert ours.p == pytest.approx(theirs.p_value, abs=0.03)
    assert 0.01 < ours.p < 0.6
    assert ours.difference == pytest.approx(sacrebleu.corpus_bleu(texts, [references]).score - theirs.score)


def test_a_better_model_is_significant():
    names = ["chrf", "exact", "tokens"]
    found = compare_answers(answers(TEXTS), answers(WORSE), names, resamples=500)
    assert list(found) == names
    assert found["chrf"].difference > 0
    assert (found["exact"].difference, found["exact"].p) == (1 / 4 - 1 / 4, 1)
    # of the four, one is equal: a difference as large needs the other three all swapped or none, 2 of 8
    assert found["chrf"].p == pytest.approx(2 / 8, abs=0.06)


def test_other_examples_are_refused():
    shorter = answers(TEXTS[:3], [[one] for one in REFERENCES[:3]])
    with pytest.raises(QkvError, match=r"same examples, but their inputs differ \(4 and 3\)"):
        compare_answers(answers(TEXTS), shorter, ["exact"])
    with pytest.raises(QkvError, match="their references differ"):
        compare_answers(answers(TEXTS), answers(TEXTS, [["x"]] * 4), ["exact"])


def test_tokens_of_two_units_are_not_compared():
    with pytest.raises(ValueError, match="words and characters, which cannot be compared; leave it out"):
        compare_answers(answers(TEXTS), answers(TEXTS, unit="characters"), ["tokens"])
    assert compare_answers(answers(TEXTS), answers(TEXTS, unit="characters"), ["exact"])["exact"].p == 1


def test_spaces_do_not_make_examples_different():
    other = replace(answers(TEXTS), sources=[text.replace(" ", "  ") for text in REFERENCES])
    assert compare_answers(answers(TEXTS), other, ["exact"])["exact"].difference == 0


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"unknown metric 'blue'; did you mean 'bleu'\?"):
        require_metrics(["blue"])
    with pytest.raises(ValueError, match="got none"):
        require_metrics([])
    with pytest.raises(ValueError, match="different names, at least one, got bleu, bleu"):
        require_metrics(["bleu", "bleu"])
    with pytest.raises(ValueError, match="at least one text, got none"):
        score_answers(answers([], []), ["exact"])


def test_without_sacrebleu_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(QkvError, match=r'sacrebleu: pip install "qkv\[metrics\]"'):
        score_answers(answers(TEXTS), ["bleu"])
    assert score_answers(answers(TEXTS), ["exact"], resamples=5)["exact"].value == 1 / 4
