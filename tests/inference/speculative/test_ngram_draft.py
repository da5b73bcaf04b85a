import pytest

from qkv.inference.speculative import PromptNgramDraft


def propose(draft, ids, count):
    return list(draft.propose(ids, count, lambda *_: pytest.fail("an n-gram needs no logits")).tokens)


def test_what_followed_the_latest_occurrence():
    ids = [1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3]
    assert propose(PromptNgramDraft(3), ids, 3) == [8, 9, 1]
    assert propose(PromptNgramDraft(3), ids, 1) == [8]


def test_the_longest_match_wins():
    ids = [5, 6, 7, 0, 6, 8, 5, 6]
    assert propose(PromptNgramDraft(2), ids, 2) == [7, 0]
    assert propose(PromptNgramDraft(1), ids, 2) == [8, 5]


def test_a_periodic_text_is_continued_beyond_its_end():
    assert propose(PromptNgramDraft(3), [4, 5, 4, 5, 4], 5) == [5, 4, 5, 4, 5]
    assert propose(PromptNgramDraft(3), [6, 6], 3) == [6, 6, 6]


@pytest.mark.parametrize("ids", [[3], [1, 2, 3]])
def test_nothing_new_can_be_proposed(ids):
    assert propose(PromptNgramDraft(3), ids, 4) == []


def test_it_reads_on_and_starts_anew_with_another_text():
    draft = PromptNgramDraft(2)
    assert propose(draft, [1, 2, 3], 2) == []
    assert propose(draft, [1, 2, 3, 1, 2], 2) == [3, 1]
    assert propose(draft, [9, 8, 1, 2], 2) == []


def test_n_is_checked():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        PromptNgramDraft(0)
