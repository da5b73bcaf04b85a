import re

import pytest
import torch

from qkv.data import Neighbor, Vectors
from qkv.errors import QkvError

WORDS = ("man", "king", "woman", "queen", "the")


@pytest.fixture
def vectors():
    """Two directions, royal and female, and a word that is opposite to all."""
    return Vectors(WORDS, torch.tensor([[1.0, 0, 0], [3, 3, 0], [1, 0, 1], [1, 1, 1], [-2, -2, -2]]))


def test_nearest_by_hand(vectors):
    found = vectors.nearest("man", 3)
    assert [neighbor.word for neighbor in found[1:]] != ["king"]
    cosines = {"king": 2**-0.5, "woman": 2**-0.5, "queen": 3**-0.5}
    assert {n.word for n in found} == set(cosines)
    assert [n.cosine for n in found] == pytest.approx([2**-0.5, 2**-0.5, 3**-0.5])
    assert found[2] == Neighbor("queen", pytest.approx(3**-0.5))
    assert vectors.cosine("queen", "the") == pytest.approx(-1)


def test_analogy_by_hand(vectors):
    """king/|king| - man + woman/|woman|: queen is nearest; the query words are excluded."""
    assert vectors.analogy("man", "king", "woman", 1)[0].word == "queen"
    wanted = torch.tensor([2 * 2**-0.5 - 1, 2**-0.5, 2**-0.5])
    expected = float(wanted @ torch.ones(3)) / float(wanted.norm()) / 3**0.5
    assert vectors.analogy("man", "king", "woman", 1)[0].cosine == pytest.approx(expected)
    assert [n.word for n in vectors.analogy("man", "king", "woman")] == ["queen", "the"]


def test_a_batch_of_analogies_equals_single_ones():
    torch.manual_seed(3)
    words = tuple(f"w{n}" for n in range(29))
    vectors = Vectors(words, torch.randn(29, 7))
    asked = [tuple(words[n] for n in torch.randperm(29)[:3]) for _ in range(600)]
    assert vectors.solve_analogies(asked) == [vectors.analogy(*three, 1)[0].word for three in asked]
    assert vectors.solve_analogies([]) == []


def test_lookup(vectors):
    assert vectors["king"].tolist() == [3, 3, 0]
    assert "king" in vectors
    assert "King" not in vectors
    assert vectors["King"].tolist() == [3, 3, 0]  # in lower case, if that is there
    assert len(vectors) == 5


def test_an_unknown_word(vectors):
    with pytest.raises(QkvError, match=re.escape("no vector for 'quene' among 5 words; did you mean 'queen'?")):
        vectors.nearest("quene")
    with pytest.raises(QkvError, match=re.escape("no vector for 'zzz' among 5 words") + "$"):
        vectors.analogy("man", "zzz", "woman")


def test_bad_input(vectors):
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        vectors.nearest("man", 0)
    with pytest.raises(ValueError, match=re.escape("table must have 1 rows, one per word, got (2, 3)")):
        Vectors(("a",), torch.zeros(2, 3))


def test_a_vector_of_zeros_is_near_to_nothing():
    assert Vectors(("a", "b"), torch.tensor([[0.0, 0], [1, 0]])).nearest("b") == [Neighbor("a", 0.0)]
