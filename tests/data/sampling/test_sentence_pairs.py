import pytest
import torch

from qkv.data.sampling.sentence_pairs import PairLayout, SentencePairs

CLASSIFY, SEPARATOR, PAD = 1, 2, 0


def documents(*shape):
    """Documents of sentences of ids that count up from 1000 * document: where a token is from can be read from it."""
    found = []
    for number, lengths in enumerate(shape, 1):
        ids = iter(range(1000 * number, 1000 * number + sum(lengths)))
        found.append([[next(ids) for _ in range(length)] for length in lengths])
    return found


def pairs(length, *shape):
    return SentencePairs(documents(*shape), PairLayout(CLASSIFY, SEPARATOR, PAD, length))


def stretches(row):
    """The two stretches of a row; the signs are where they belong."""
    tokens = [token for token in row.tolist() if token != PAD]
    assert tokens[0] == CLASSIFY
    assert tokens[-1] == SEPARATOR
    middle = tokens.index(SEPARATOR)
    return tokens[1:middle], tokens[middle + 1 : -1]


SHAPE = ((5, 7, 3, 11, 2, 6), (13, 4), (9,), (3, 3, 3, 3, 3, 3, 3, 3, 3))
FIRST = [[0, 5, 12, 15, 26, 28, 34], [0, 13, 17], [0, 9], [*range(0, 28, 3)]]
"""Start of each sentence of each document, and its end."""


@pytest.mark.parametrize("length", [17, 40, 200])
def test_pairs_match_their_labels(length):
    found = pairs(length, *SHAPE).draw(5, torch.arange(500))
    for tokens, segments, mask, apart in zip(*found, strict=True):
        one, two = stretches(tokens)
        home, other = one[0] // 1000, two[0] // 1000
        assert (home != other) == bool(apart)
        assert apart or two[0] == one[-1] + 1
        assert one == list(range(one[0], one[-1] + 1))
        assert two == list(range(two[0], two[-1] + 1))
        assert len(one) + len(two) + 3 <= length
        assert one[-1] % 1000 + 1 in FIRST[home - 1]
        assert two[0] % 1000 in FIRST[other - 1]
        assert mask.sum() == len(one) + len(two) + 3
        assert segments.sum() == len(two) + 1
        assert segments.diff().clamp(min=0).sum() == 1
        assert not segments[: len(one) + 2].any()


def test_a_long_row_is_filled_and_a_short_document_is_not_stretched():
    """Two sentences of 60 in a row of 43 keep 20 each; the lone pair of short ones stays whole."""
    many = pairs(43, (60, 60), (2, 3)).draw(1, torch.arange(100))
    lengths = {
        tuple(map(len, stretches(row)))
        for row, apart in zip(many.tokens, many.is_random_next, strict=True)
        if not apart
    }
    assert lengths == {(20, 20), (2, 3)}
    # random seconds: 38 of the 60 fit after 2; after a first segment of 60 one short sentence fits
    lengths = {
        tuple(map(len, stretches(row))) for row, apart in zip(many.tokens, many.is_random_next, strict=True) if apart
    }
    assert lengths == {(2, 38), (37, 3), (38, 2)}


def test_half_are_random_and_every_start_occurs():
    found = pairs(200, *SHAPE).draw(5, torch.arange(4000))
    assert found.is_random_next.float().mean().item() == pytest.approx(0.5, abs=0.024)  # three deviations
    firsts, seconds = zip(*map(stretches, found.tokens), strict=True)
    assert {one[0] for one in firsts} == {1000, 1005, 1012, 1015, 1026, 2000, *range(4000, 4024, 3)}
    elsewhere = {two[0] for two, apart in zip(seconds, found.is_random_next, strict=True) if apart}
    starts = {1000 * home + start for home, ends in enumerate(FIRST, 1) for start in ends[:-1]}
    assert elsewhere == starts


def test_a_function_of_key_and_id_alone():
    source = pairs(40, *SHAPE)
    many, few = source.draw(5, torch.arange(50)), source.draw(5, torch.arange(20, 22))
    for whole, part in zip(many, few, strict=True):
        assert torch.equal(whole[20:22][..., : part.shape[-1]] if part.dim() == 2 else whole[20:22], part)
    assert not torch.equal(source.draw(6, torch.arange(50)).is_random_next, many.is_random_next)


def test_empty_sentences_and_documents_are_skipped():
    source = SentencePairs([[], [[5], [], [6]], [[]], [[7]]], PairLayout(CLASSIFY, SEPARATOR, PAD, 9))
    assert source.sentences == 3
    assert source.tokens.tolist() == [5, 6, 7]


@pytest.mark.parametrize("found", [[], [[[5], [6]]], [[[5]], [[6]]]])
def test_too_few_documents(found):
    with pytest.raises(ValueError, match="documents must be at least two, one of them with at least two sentences"):
        SentencePairs(found, PairLayout(CLASSIFY, SEPARATOR, PAD, 9))


def test_too_short_a_row():
    with pytest.raises(ValueError, match="length must be at least 5"):
        PairLayout(CLASSIFY, SEPARATOR, PAD, 4)
