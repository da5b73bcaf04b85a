"""Files by the rules of the tools that read them."""

import json
import re
from xml.etree import ElementTree

import pytest

from qkv.data import read_pairs
from qkv.pronunciation import Answer, Pronunciation, Source, from_ipa, read_dictionary, write_lexicon
from qkv.pronunciation.lexicon import FORMATS

READ = (Pronunciation(("R", "IY1", "D"), 0.6), Pronunciation(("R", "EH1", "D"), 0.3))
RARE = (Pronunciation(("K", "AH0", "B"), 0.9), Pronunciation(("K", "UW1", "B"), 0.0001))
ANSWERS = [
    Answer("read", Source.dictionary, READ),
    Answer(",", Source.punctuation),
    Answer("kub", Source.model, RARE),
    Answer("🙂", Source.none, why="no"),
    Answer("read", Source.dictionary, READ),
    Answer("it's", Source.dictionary, (Pronunciation(("IH1", "T", "S"), 1.0),)),
]


def written(form, alphabet=None, answers=ANSWERS):
    return "".join(write_lexicon(answers, form, alphabet))


def test_cmu_is_read_again_as_it_was(tmp_path):
    path = tmp_path / "lexicon"
    path.write_text(written("cmu"))
    assert path.read_text().splitlines()[:2] == ["read R IY1 D", "read(2) R EH1 D"]
    found = read_dictionary(path)
    assert found.bad == ()
    assert {word: found.lookup(word) for word in found} == {
        answer.input: tuple(way.phones for way in answer.best) for answer in ANSWERS if answer.best
    }


def kaldi_lines(text):
    """The rules of Kaldi's validate_dict_dir: no empty or repeated line, no tab at an end, a phone at least."""
    lines = text.splitlines()
    assert text.endswith("\n")
    assert len(lines) == len(set(lines))
    assert all(line == line.strip() and not re.search(r"\s\s|<s>|</s>|<eps>|#\d", line) for line in lines)
    return [line.split(" ") for line in lines]


def test_kaldi_lexicon_txt():
    lines = kaldi_lines(written("kaldi"))
    assert lines[:2] == [["!SIL", "SIL"], ["<UNK>", "SPN"]]
    assert lines[2:] == [
        ["read", "R", "IY1", "D"],
        ["read", "R", "EH1", "D"],
        ["kub", "K", "AH0", "B"],
        ["kub", "K", "UW1", "B"],
        ["it's", "IH1", "T", "S"],
    ]


def test_kaldi_lexiconp_txt():
    """A probability in (0, 1] after the word, the likeliest pronunciation of each word 1."""
    lines = kaldi_lines(written("kaldip"))
    shares = [(line[0], float(line[1])) for line in lines]
    assert shares == [
        *(("!SIL", 1.0), ("<UNK>", 1.0)),
        *(("read", 1.0), ("read", 0.5), ("kub", 1.0), ("kub", 0.01), ("it's", 1.0)),
    ]
    assert lines[3][2:] == ["R", "EH1", "D"]


def test_mfa():
    """Tab separated: word, phones; or word, probability from 0.01 to 1, phones."""
    assert written("mfa").splitlines()[1] == "read\tR EH1 D"
    rows = [line.split("\t") for line in written("mfap").splitlines()]
    assert rows[1] == ["read", "0.5000", "R EH1 D"]
    assert all(len(row) == 3 and 0.01 <= float(row[1]) <= 1 for row in rows)


def test_tsv_is_what_pairs_are_read_from(tmp_path):
    path = tmp_path / "lexicon.tsv"
    path.write_text(written("tsv"))
    found = read_pairs(path, strict=True).pairs
    assert [("".join(pair.source), pair.targets) for pair in found] == [
        (answer.input, tuple(way.phones for way in answer.best)) for answer in dict.fromkeys(ANSWERS) if answer.best
    ]


def test_json():
    assert json.loads(written("json")) == {
        "read": ["R IY1 D", "R EH1 D"],
        "kub": ["K AH0 B", "K UW1 B"],
        "it's": ["IH1 T S"],
    }
    assert json.loads(written("json", answers=[])) == {}


PLS = "{http://www.w3.org/2005/01/pronunciation-lexicon}"
XML = "{http://www.w3.org/XML/1998/namespace}"


def validate_pls(text):
    """What the schema of PLS 1.0 demands of the parts that we write (no validator of schemas is installed).

    lexicon: version 1.0, alphabet and xml:lang required, then lexemes; a lexeme: graphemes, at least one, and after
    them phonemes or aliases, at least one; graphemes and phonemes hold text and nothing else.
    """
    root = ElementTree.fromstring(text.encode())
    assert root.tag == PLS + "lexicon"
    assert set(root.attrib) == {"version", "alphabet", XML + "lang"}
    assert root.attrib["version"] == "1.0"
    assert re.fullmatch(r"ipa|x-[a-z]+(-[a-z]+)*", root.attrib["alphabet"])
    assert re.fullmatch(r"[a-zA-Z]{2,8}(-[a-zA-Z0-9]{1,8})*", root.attrib[XML + "lang"])
    for lexeme in root:
        assert lexeme.tag == PLS + "lexeme"
        assert lexeme.attrib == {}
        assert re.fullmatch("g+p+", "".join(child.tag.removeprefix(PLS)[0] for child in lexeme))
        assert {child.tag for child in lexeme} == {PLS + "grapheme", PLS + "phoneme"}
        assert all(child.text.strip() and len(child) == 0 and not child.attrib for child in lexeme)
    return root


def test_pls():
    root = validate_pls(written("pls"))
    assert root.attrib["alphabet"] == "ipa"
    found = {lexeme[0].text: [from_ipa(phoneme.text) for phoneme in lexeme[1:]] for lexeme in root}
    assert found == {answer.input: [way.phones for way in answer.best] for answer in ANSWERS if answer.best}
    assert validate_pls(written("pls", "arpabet"))[0][1].text == "R IY1 D"
    assert len(validate_pls(written("pls", answers=[]))) == 0


def test_pls_escapes_what_xml_would_read():
    answer = Answer("r&b", Source.user, READ)
    assert validate_pls(written("pls", answers=[answer]))[0][0].text == "r&b"


@pytest.mark.parametrize("form", ["cmu", "kaldi", "mfa", "tsv"])
def test_ipa_keeps_phones_apart(form):
    assert "ˈi d" in written(form, "ipa")


def test_what_cannot_be_written_is_named():
    with pytest.raises(ValueError, match="did you mean 'kaldi'"):
        written("kladi")
    with pytest.raises(ValueError, match="unknown alphabet 'sampa'"):
        written("cmu", "sampa")
    with pytest.raises(ValueError, match="'new york' has a space"):
        written("kaldi", answers=[Answer("new york", Source.user, READ)])


def test_entries_are_written_as_they_come():
    def answers():
        yield ANSWERS[0]
        raise AssertionError("read too far")

    for form in FORMATS:
        stream = write_lexicon(answers(), form)
        assert "read" in next(stream) + next(stream)
