"""What can be said of the benchmark of sentences without running it."""

import json

from benchmarks import sentences
from benchmarks.pronounce_peers import from_espeak


def test_the_table_is_that_of_the_result_file():
    text = sentences.PAGE.read_text(encoding="utf-8")
    assert sentences.table(json.loads(sentences.RESULTS.read_text())) in text


def test_lists_are_read(tmp_path):
    path = tmp_path / "list.tsv"
    path.write_text("word\tphones\tsentence\nread\tR EH1 D\tHe [read] it.\n")
    (one,) = sentences.read_heteronyms(path)
    assert (one.sentence, len(one.before), one.phones) == ("He read it.", 3, ("R", "EH1", "D"))
    path.write_text("kind\ttext\twords\nplural\tTwo FBI's.\ttwo f b i's | two f b is\n")
    assert sentences.read_numbers(path) == [sentences.Number("plural", "Two FBI's.", ("two f b is", "two f b is"))]


def test_the_nearest_reading_is_compared():
    verb, noun = ("IH2", "M", "P", "AO1", "R", "T"), ("IH1", "M", "P", "AO2", "R", "T")
    assert sentences.nearest(("IH0", "M", "P", "AO1", "R", "T"), [noun, verb]) == verb
    cases = [sentences.Heteronym("import", noun, "", ""), sentences.Heteronym("import", verb, "", "")]
    found = sentences.measure_heteronyms(cases, lambda one: verb)
    assert (found["right"], found["of"], found["same_phones"], found["words"]) == (1, 2, 1, 1)


def test_each_part_is_there_as_soon_as_it_is_measured(tmp_path):
    (tmp_path / "heteronyms_dev.tsv").write_text("word\tphones\tsentence\nread\tR EH1 D\tHe has [read] it.\n")
    (tmp_path / "numbers_dev.tsv").write_text("kind\ttext\twords\ncardinal\tIt is 12.\tit is twelve\n")
    parts = sentences.measure_split(tmp_path, "dev", tmp_path / "no_peers")
    assert list(next(parts)["heteronyms"]) == ["qkv"]
    *_, last = parts
    assert last["heteronyms"]["qkv"]["right"] == last["numbers"]["right"] == 1
    assert {"g2p_en", "num2words"} <= set(last["not_measured"])


def test_an_interrupted_run_keeps_what_was_measured(tmp_path):
    path, record = tmp_path / "out.json", {"book": {"words": 3}}
    sentences._save(path, record, "dev", {"numbers": 1})
    sentences._save(path, record, "dev", {"numbers": 1, "more": 2})
    assert json.loads(path.read_text()) == {"book": {"words": 3}, "dev": {"numbers": 1, "more": 2}}


def test_espeak_is_mapped_with_stress():
    assert from_espeak("ɹ\u02c8ɛkɚd") == ("R", "EH1", "K", "ER0", "D")
