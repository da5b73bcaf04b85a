"""Files by the rules of the tools that read them."""

import json
import re
from pathlib import Path

import pytest
from lxml import etree

from qkv.data import read_pairs
from qkv.pronunciation import Pronunciation, Source, WordAnswer, from_ipa, read_dictionary, write_lexicon
from qkv.pronunciation.arpabet import CONSONANTS, STRESSES, VOWELS
from qkv.pronunciation.lexicon import FORMATS

READ = (Pronunciation(("R", "IY1", "D"), 0.6), Pronunciation(("R", "EH1", "D"), 0.3))
RARE = (Pronunciation(("K", "AH0", "B"), 0.9), Pronunciation(("K", "UW1", "B"), 0.0001))
ANSWERS = [
    WordAnswer("read", Source.dictionary, READ),
    WordAnswer(",", Source.punctuation),
    WordAnswer("kub", Source.model, RARE),
    WordAnswer("🙂", Source.none, reason="no"),
    WordAnswer("read", Source.dictionary, READ),
    WordAnswer("it's", Source.dictionary, (Pronunciation(("IH1", "T", "S"), 1.0),)),
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


PHONES = {*CONSONANTS, *(vowel + stress for vowel in VOWELS for stress in STRESSES)}


def kaldi_lines(text):
    """The rules of Kaldi's validate_dict_dir: no empty or repeated line, no carriage return, a phone at least, one
    space between, no words that it keeps for itself, and every phone one of phones.txt."""
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) == len(set(lines))
    assert all(re.fullmatch(r"\S+( \S+)+", line) for line in lines)
    rows = [line.split(" ") for line in lines]
    assert not {row[0] for row in rows} & {"<s>", "</s>", "<eps>", "#0"}
    return rows


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
    assert {phone for _, *phones in lines for phone in phones} <= PHONES | {"SIL", "SPN"}


def test_kaldi_lexiconp_txt():
    """A probability in (0, 1] after the word, the likeliest pronunciation of each word 1."""
    lines = kaldi_lines(written("kaldip"))
    shares = [(line[0], float(line[1])) for line in lines]
    assert shares == [
        *(("!SIL", 1.0), ("<UNK>", 1.0)),
        *(("read", 1.0), ("read", 0.5), ("kub", 1.0), ("kub", 0.01), ("it's", 1.0)),
    ]
    assert lines[3][2:] == ["R", "EH1", "D"]
    assert [[word, *phones] for word, _, *phones in lines] == kaldi_lines(written("kaldi"))


def test_mfa():
    """Word, phones; or word, probability from 0.01 to 1, phones; tabs between, one space between phones."""
    plain, shares = ([line.split("\t") for line in written(form).splitlines()] for form in ("mfa", "mfap"))
    assert plain[1] == ["read", "R EH1 D"]
    assert shares[1] == ["read", "0.5000", "R EH1 D"]
    assert [[word, phones] for word, _, phones in shares] == plain
    assert all(0.01 <= float(share) <= 1 for _, share, _ in shares)
    assert all(re.fullmatch(r"\S+", word) and set(phones.split(" ")) <= PHONES for word, phones in plain)


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
SCHEMA = etree.RelaxNG(etree.parse(Path(__file__).with_name("pls.rng")))
LEXICON = (
    '<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" '
    'alphabet="ipa" xml:lang="en">{}</lexicon>'
)


def validate_pls(text):
    root = etree.fromstring(text.encode())
    SCHEMA.assertValid(root)
    return root


def test_pls():
    root = validate_pls(written("pls"))
    assert root.attrib["alphabet"] == "ipa"
    found = {lexeme[0].text: [from_ipa(phoneme.text) for phoneme in lexeme[1:]] for lexeme in root}
    assert found == {answer.input: [way.phones for way in answer.best] for answer in ANSWERS if answer.best}
    assert {child.tag for lexeme in root for child in lexeme} == {PLS + "grapheme", PLS + "phoneme"}
    arpabet = validate_pls(written("pls", "arpabet"))
    assert (arpabet.attrib["alphabet"], arpabet[0][1].text) == ("x-cmu-arpabet", "R IY1 D")
    assert len(validate_pls(written("pls", answers=[]))) == 0


def test_pls_of_every_phone():
    """A word for each phone, alone and with each stress: no sign that XML or the schema minds."""
    phones = [*CONSONANTS, *(vowel + stress for vowel in VOWELS for stress in STRESSES)]
    ways = [WordAnswer(phone, Source.user, (Pronunciation((phone,), 1.0),)) for phone in phones]
    root = validate_pls(written("pls", answers=ways))
    assert [from_ipa(lexeme[1].text) for lexeme in root] == [(phone,) for phone in phones]


@pytest.mark.parametrize(
    "good",
    [
        "<lexeme><grapheme>a</grapheme><grapheme>A</grapheme><alias>b</alias><example>a b</example></lexeme>",
        '<meta name="a" content="b"/><lexeme role="x:y"><grapheme>a</grapheme><alias prefer="true">a</alias></lexeme>',
        '<metadata><d xmlns="urn:d" e="f">g</d></metadata>',
    ],
)
def test_the_schema_takes_what_the_recommendation_allows(good):
    text = LEXICON.format(good).replace("<lexicon ", '<lexicon xmlns:x="urn:x" ')
    assert SCHEMA.validate(etree.fromstring(text))


@pytest.mark.parametrize(
    "bad",
    [
        "<lexeme><grapheme>a</grapheme></lexeme>",
        "<lexeme><phoneme>a</phoneme></lexeme>",
        "<lexeme><phoneme>a</phoneme><grapheme>a</grapheme></lexeme>",
        "<lexeme><grapheme> </grapheme><phoneme>a</phoneme></lexeme>",
        "<lexeme><grapheme>a</grapheme><phoneme/></lexeme>",
        "<lexeme><grapheme>a<b/></grapheme><phoneme>a</phoneme></lexeme>",
        '<lexeme><grapheme>a</grapheme><phoneme prefer="yes">a</phoneme></lexeme>',
        '<lexeme><grapheme>a</grapheme><phoneme alphabet="sampa">a</phoneme></lexeme>',
        '<lexeme word="a"><grapheme>a</grapheme><phoneme>a</phoneme></lexeme>',
        '<lexeme><grapheme>a</grapheme><phoneme>a</phoneme></lexeme><meta name="a" content="b"/>',
        "<phoneme>a</phoneme>",
        "a",
    ],
)
def test_the_schema_refuses_the_rest(bad):
    assert not SCHEMA.validate(etree.fromstring(LEXICON.format(bad)))


@pytest.mark.parametrize("part", [' version="1.0"', ' alphabet="ipa"', ' xml:lang="en"'])
def test_the_schema_needs_every_attribute_of_the_lexicon(part):
    assert SCHEMA.validate(etree.fromstring(LEXICON.format("")))
    assert not SCHEMA.validate(etree.fromstring(LEXICON.format("").replace(part, "")))


def test_pls_escapes_what_xml_would_read():
    answer = WordAnswer("r&b<]]>\"'", Source.user, READ)
    assert validate_pls(written("pls", answers=[answer]))[0][0].text == "r&b<]]>\"'"


@pytest.mark.parametrize("sign", ["\0", "\x1b", "\ufffe", "\ud800"])
def test_pls_cannot_hold_what_xml_cannot(sign):
    with pytest.raises(ValueError, match="has a character that XML cannot hold"):
        written("pls", answers=[WordAnswer(f"a{sign}b", Source.user, READ)])


@pytest.mark.parametrize("form", ["cmu", "kaldi", "mfa", "tsv"])
def test_ipa_keeps_phones_apart(form):
    assert "ˈi d" in written(form, "ipa")


def test_what_cannot_be_written_is_named():
    with pytest.raises(ValueError, match="did you mean 'kaldi'"):
        written("kladi")
    with pytest.raises(ValueError, match="unknown alphabet 'sampa'"):
        written("cmu", "sampa")
    with pytest.raises(ValueError, match="'new york' has a space"):
        written("kaldi", answers=[WordAnswer("new york", Source.user, READ)])


def test_entries_are_written_as_they_come():
    def answers():
        yield ANSWERS[0]
        raise AssertionError("read too far")

    for form in FORMATS:
        stream = write_lexicon(answers(), form)
        assert "read" in next(stream) + next(stream)
