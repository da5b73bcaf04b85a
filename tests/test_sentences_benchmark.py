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


def test_espeak_is_mapped_with_stress():
    assert from_espeak("ɹ\u02c8ɛkɚd") == ("R", "EH1", "K", "ER0", "D")
