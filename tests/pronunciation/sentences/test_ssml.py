from xml.etree import ElementTree

import pytest

from qkv.pronunciation import Pronouncer, SentenceReader, write_ssml

NAMESPACE = "{http://www.w3.org/2001/10/synthesis}"


def test_text_and_phonemes_survive_xml(tiny):
    text = 'a < b & "c" \x01 2 > 1'
    document = "".join(write_ssml(SentenceReader(Pronouncer(model=tiny)).read(text)))
    root = ElementTree.fromstring(document)
    assert "".join(root.itertext()) == text.replace("\x01", "\ufffd")
    phonemes = root.findall(f"{NAMESPACE}phoneme")
    assert [one.get("alphabet") for one in phonemes] == ["ipa"] * len(phonemes)
    assert phonemes[-1].get("ph") == "ˈwʌn"


def test_texts_are_separated(tiny):
    tokens = SentenceReader(Pronouncer(model=tiny)).stream([(1, "hello"), (2, "world")])
    assert "</phoneme>\n<phoneme" in "".join(write_ssml(tokens, "arpabet"))
    with pytest.raises(ValueError, match="did you mean 'ipa'"):
        list(write_ssml([], "ippa"))
