import io
import zipfile

import pytest

from qkv.data import SentencePair, tatoeba
from qkv.data.components import sentence_key
from qkv.data.corpora import tatoeba as module
from qkv.data.corpora.tatoeba import parse_tatoeba
from qkv.errors import QkvError

LINES = "Go.\tVa !\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (CM) & #2 (W)\n"


def test_lines_are_english_translation_and_attribution():
    assert parse_tatoeba(LINES + "\n") == [SentencePair("Go.", "Va !")]


@pytest.mark.parametrize("line", ["Go.\tVa !", "Go.\t\tCC-BY", "Go."])
def test_another_number_of_fields_is_refused(line):
    with pytest.raises(QkvError, match="line 2 must be English TAB translation TAB attribution, got 'Go"):
        parse_tatoeba(LINES + line)


def test_the_archive_of_a_language_is_read(monkeypatch):
    asked = []

    def read(archive, member):
        asked.append((archive.file, member))
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as zipped:
            zipped.writestr(
                "spa.txt", "".join(LINES.replace("Go", f"Go {n}").replace("Va", f"Ve {n}") for n in range(900))
            )
        return data.getvalue()

    monkeypatch.setattr(module, "read_archive_member", read)
    splits = tatoeba("spanish")
    assert asked == [("nmt-0.0.6.tar.gz", "nmt-0.0.6/data/spa-eng.zip")]
    assert list(splits) == ["train", "valid", "test"]
    assert sorted(pair.source for own in splits.values() for pair in own) == sorted(f"Go {n}." for n in range(900))
    assert len(splits["train"]) > 800
    with pytest.raises(ValueError, match=r"unknown language 'frensh'; did you mean 'french'\?"):
        tatoeba("frensh")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "sizes"), [("french", [172_622, 1_754, 3_633]), ("spanish", [120_941, 1_195, 2_411])]
)
def test_no_sentence_of_the_real_data_is_in_two_splits(language, sizes):
    try:
        splits = tatoeba(language)
    except QkvError as error:
        pytest.skip(str(error))
    assert list(map(len, splits.values())) == sizes
    for side in (0, 1):
        for key in (str, sentence_key):
            parts = [{key(pair[side]) for pair in own} for own in splits.values()]
            assert sum(map(len, parts)) == len(set().union(*parts))
