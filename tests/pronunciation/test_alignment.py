from itertools import product
from math import prod

import pytest
import torch

from qkv.pronunciation import alignment
from qkv.pronunciation.alignment import MOVES, align


def cuts_of(word, phones):
    """All of them, by trying every sequence of moves."""
    if not word:
        return [] if phones else [[]]
    return [
        [(word[:a], phones[:b]), *rest]
        for a, b in MOVES
        if a <= len(word) and b <= len(phones)
        for rest in cuts_of(word[a:], phones[b:])
    ]


PAIRS = [
    ("phone", ("F", "OW", "N")),
    ("phase", ("F", "EY", "Z")),
    ("tax", ("T", "AE", "K", "S")),
    ("ax", ("AE", "K", "S")),
    ("at", ("AE", "T")),
    ("tap", ("T", "AE", "P")),
    ("nap", ("N", "AE", "P")),
    ("sat", ("S", "AE", "T")),
]


def test_units_of_two_letters_and_of_two_phones_are_found():
    found = dict(zip((word for word, _ in PAIRS), align(PAIRS * 3), strict=False))
    assert ("ph", ("F",)) in found["phone"]
    assert ("x", ("K", "S")) in found["tax"]
    assert found["at"] == [("a", ("AE",)), ("t", ("T",))]


def test_a_cut_is_the_whole_pair_and_a_pair_with_too_many_phones_has_none():
    pairs = [*PAIRS, ("a", ("T", "R", "IH")), ("www", ("D",) * 6)]
    *cuts, three, six = align(pairs)
    assert three is None
    assert six == [("w", ("D", "D"))] * 3
    for (word, phones), cut in zip(PAIRS, cuts, strict=True):
        assert "".join(letters for letters, _ in cut) == word
        assert tuple(phone for _, some in cut for phone in some) == phones


def test_nothing_to_cut():
    assert align([]) == []
    assert align([("a", ("A", "B", "C"))]) == [None]


@pytest.mark.parametrize(
    "pairs", [PAIRS, [("".join(w), tuple(p)) for w, p in product(product("ab", repeat=3), ["X", "XY", "XYX"])]]
)
def test_expected_counts_are_those_of_all_cuts(pairs):
    """One round on probabilities that are not all alike, against the sum over every cut of every pair."""
    lattices, size = alignment._renumber_units(alignment._build_lattices(pairs))
    probability = torch.rand(size, dtype=torch.float64)
    counts = torch.zeros_like(probability)
    names = {}
    for one in lattices:
        alignment._add_expected_counts(one, probability, counts)
        for (i, j, a, b), units in one.units.items():
            for member, unit in zip(one.pair_indices, units.tolist(), strict=True):
                word, phones = pairs[member]
                names[word[i : i + a], phones[j : j + b]] = unit
    expected = torch.zeros_like(probability)
    for word, phones in pairs:
        cuts = cuts_of(word, phones)
        weights = [prod(float(probability[names[unit]]) for unit in cut) for cut in cuts]
        for cut, weight in zip(cuts, weights, strict=True):
            for unit in cut:
                expected[names[unit]] += weight / sum(weights)
    torch.testing.assert_close(counts, expected, rtol=1e-12, atol=1e-12)


def test_the_likeliest_cut_is_the_best_of_all():
    lattices, size = alignment._renumber_units(alignment._build_lattices(PAIRS))
    logs = torch.rand(size, dtype=torch.float64).log()
    for one in lattices:
        values = {edge: dict(zip(one.pair_indices, units.tolist(), strict=True)) for edge, units in one.units.items()}
        for member, path in zip(one.pair_indices, alignment._best_paths(one, logs), strict=True):
            word, phones = PAIRS[member]

            def value(cut, member=member, values=values):
                i = j = 0
                total = 0.0
                for letters, some in cut:
                    total += float(logs[values[i, j, len(letters), len(some)][member]])
                    i, j = i + len(letters), j + len(some)
                return total

            own = [(word[i : i + a], phones[j : j + b]) for i, j, a, b in path]
            assert value(own) == pytest.approx(max(map(value, cuts_of(word, phones))))


def test_long_pairs_spoil_nothing():
    """Of 48 letters a cut still has a probability; of more it might not, and those are left out."""
    letters = "abcdefgh"
    words = ["".join(letters[(i * j) % 8] for j in range(1, 4 + i % 6)) for i in range(300)]
    long = letters * 6
    pairs = [(word, tuple(word.upper())) for word in (*words, long, long + "a")]
    *cuts, longest, longer = align(pairs)
    assert longer is None
    assert "".join(some for some, _ in longest) == long
    assert all("".join(some for some, _ in cut) == word for cut, word in zip(cuts, words, strict=True))


def test_many_letters_take_no_room():
    """Two thousand different ones: the table has a place for what could be a unit somewhere, not for all there are."""
    pairs = [(chr(0xAC00 + n) + chr(0xAC01 + n), ("A", "B")) for n in range(2000)]
    assert all(cut is not None for cut in align(pairs, iterations=2))
