import math
import random

import pytest
import torch
from rapidfuzz.distance import DamerauLevenshtein

from qkv.metrics import cosine, damerau_levenshtein, jaccard

ALL = [jaccard, cosine, damerau_levenshtein]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("kitten", "sitting", (0.428571, 0.746203, 0.571429)),
        ("ab", "ba", (1, 1, 0.5)),
        ("ab", "aabb", (1, 1, 0.5)),
        ("", "", (1, 1, 1)),
        ("", "ab", (0, 0, 0)),
        ("ab", "", (0, 0, 0)),
        ("ab", "cd", (0, 0, 0)),
        ("ca", "abc", (2 / 3, 2 / math.sqrt(6), 1 / 3)),
        (["TH", "AH0"], ("TH", "IY0"), (1 / 3, 0.5, 0.5)),
    ],
)
def test_by_hand(a, b, expected):
    assert tuple(similarity(a, b) for similarity in ALL) == pytest.approx(expected, abs=1e-6)


def random_pairs(letters):
    generator = random.Random(letters)
    for _ in range(400):
        yield tuple([generator.randrange(letters) for _ in range(generator.randint(1, 12))] for _ in "ab")


@pytest.mark.parametrize("letters", [2, 3, 5, 20])
def test_damerau_levenshtein_equals_rapidfuzz(letters):
    for a, b in random_pairs(letters):
        assert damerau_levenshtein(a, b) == pytest.approx(DamerauLevenshtein.normalized_similarity(a, b), abs=1e-12)


@pytest.mark.parametrize("letters", [2, 3, 5, 20])
def test_jaccard_and_cosine_equal_vectors_of_torch(letters):
    for a, b in random_pairs(letters):
        x, y = (torch.bincount(torch.tensor(tokens), minlength=letters).double() for tokens in (a, b))
        assert cosine(a, b) == pytest.approx(torch.cosine_similarity(x, y, dim=0).item(), abs=1e-12)
        in_both, in_either = ((x > 0) & (y > 0)).sum().item(), ((x > 0) | (y > 0)).sum().item()
        assert jaccard(a, b) == pytest.approx(in_both / in_either, abs=1e-12)


@pytest.mark.parametrize("similarity", ALL)
def test_symmetric_within_bounds_and_one_for_equals(similarity):
    for a, b in random_pairs(3):
        assert similarity(a, b) == similarity(b, a)
        assert 0 <= similarity(a, b) <= 1
        assert similarity(a, list(a)) == 1
