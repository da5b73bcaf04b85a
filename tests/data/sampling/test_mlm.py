import pytest
import torch

from qkv.data import Tokenizer
from qkv.data.sampling.mlm import Masking

TOKENS, MASK = 101, 4


def hiding(**options):
    ordinary = torch.arange(TOKENS) > 4
    return Masking(MASK, ordinary, **options)


def rows(count, time):
    found = torch.randint(5, TOKENS, (count, time), generator=torch.Generator().manual_seed(0))
    found[:, 0], found[:, -1] = 1, 2
    return found


def test_fractions_are_those_of_bert():
    """6 of 42 tokens are selected (15 % is 6.3): 80 % masked, 10 % random, 10 % unchanged; 1,000 rows of 44."""
    given = rows(1000, 44)
    seen, asked = hiding().apply(given, 7, torch.arange(1000))
    assert asked.sum(1).tolist() == [6] * 1000
    masked, same = (seen == MASK) & asked, (seen == given) & asked
    other = asked & ~masked & ~same
    assert (seen == given)[~asked].all()
    # three deviations of a binomial of 6,000 are 0.0155 for 0.8 and 0.0116 for 0.1; one in 96 draws is the token itself
    assert masked.sum() / 6000 == pytest.approx(0.8, abs=0.0155)
    assert same.sum() / 6000 == pytest.approx(0.1 + 0.1 / 96, abs=0.012)
    assert other.sum() / 6000 == pytest.approx(0.1 - 0.1 / 96, abs=0.012)
    assert not asked[:, [0, -1]].any()
    assert seen[other].min() > 4
    places = asked.float().mean(0)[1:-1]
    assert (places - 6 / 42).abs().max() < 4 * (6 / 42 * 36 / 42 / 1000) ** 0.5


def test_a_function_of_key_and_id_alone():
    given = rows(11, 23)
    numbers = torch.arange(11) + 5
    seen, asked = hiding().apply(given, 7, numbers)
    again, where = hiding().apply(given[3:5], 7, numbers[3:5])
    assert torch.equal(again, seen[3:5])
    assert torch.equal(where, asked[3:5])
    assert not torch.equal(hiding().apply(given, 8, numbers)[1], asked)
    assert not torch.equal(hiding().apply(given, 7, numbers + 11)[1], asked)


def test_padding_changes_nothing():
    given = rows(5, 23)
    wider = torch.nn.functional.pad(given, (0, 4))
    for short, long in zip(
        hiding().apply(given, 7, torch.arange(5)), hiding().apply(wider, 7, torch.arange(5)), strict=True
    ):
        assert torch.equal(long[:, :23], short)


def test_at_least_one_token_is_masked_unless_none_is_maskable():
    given = torch.tensor([[1, 9, 2, 0], [1, 2, 2, 0]])
    _, asked = hiding().apply(given, 3, torch.arange(2))
    assert asked.tolist() == [[False, True, False, False], [False] * 4]


def test_whole_words():
    """Ids of 80 and above continue a word: a word is masked from its first piece to its last, or not at all."""
    begins = torch.arange(TOKENS) < 80
    given = rows(300, 43)
    _, asked = hiding(word_starts=begins).apply(given, 7, torch.arange(300))
    within = ~begins[given][:, 2:-1]  # continuation pieces, starting with the second ordinary token
    assert within.sum() > 1000
    assert torch.equal(asked[:, 2:-1][within], asked[:, 1:-2][within])
    counts = asked.sum(1)
    assert counts.min() >= 6
    assert counts.float().mean() < 8


def test_masking_for_a_tokenizer():
    texts = ["the cat sat on the mat", "the cats sitting on mats"]
    tokenizer = Tokenizer.train(texts, "wordpiece", 40)
    found = Masking.for_tokenizer(tokenizer, 0.3, whole_words=True)
    assert found.mask == tokenizer.mask
    assert found.maskable.tolist() == [False] * 5 + [True] * (len(tokenizer) - 5)
    goes_on = [number for number in range(len(tokenizer)) if tokenizer.id_to_token(number).startswith("##")]
    assert (~found.word_starts).nonzero()[:, 0].tolist() == goes_on
    with pytest.raises(ValueError, match=r"the tokenizer has no \[MASK\]"):
        Masking.for_tokenizer(Tokenizer.train(texts, "characters", 40))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_an_impossible_fraction(share):
    with pytest.raises(ValueError, match="fraction must be above 0 and below 1"):
        hiding(fraction=share)
