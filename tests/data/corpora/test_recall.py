from itertools import permutations

import pytest
import torch

from qkv.data import Recall


def rows(task, count=200, index=0, seed=3, split="train"):
    tokens, labels = task.examples(seed, split, index, count)
    assert tokens.shape == labels.shape == (count, task.length)
    assert tokens.dtype == labels.dtype == torch.int64
    return zip(tokens.tolist(), labels.tolist(), strict=True)


def close_to(counts, probabilities):
    """Chi-squared: of mean `freedom` and variance twice that."""
    expected = torch.tensor(probabilities, dtype=torch.float64) * sum(counts)
    freedom = len(counts) - 1
    distance = ((torch.tensor(counts) - expected) ** 2 / expected).sum()
    return abs(distance - freedom) < 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("fillers", [False, True])
@pytest.mark.parametrize(("vocabulary", "length", "pairs"), [(67, 22, 5), (12, 8, 2), (17, 16, 4), (5, 4, 1)])
def test_examples_satisfy_the_definition(vocabulary, length, pairs, fillers):
    for tokens, labels in rows(Recall(vocabulary, length, pairs, random_fillers=fillers)):
        keys, values = tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert set(keys) <= set(range(1, vocabulary // 2))
        assert set(values) <= set(range(vocabulary // 2, vocabulary))
        asked = [place for place, label in enumerate(labels) if label != -100]
        assert len(asked) == pairs
        assert all(place >= 2 * pairs and place % 2 == 0 for place in asked)
        answers = dict(zip(keys, values, strict=True))
        assert {tokens[place]: labels[place] for place in asked} == answers
        rest = [tokens[place] for place in range(2 * pairs, length) if place not in asked]
        assert len(rest) == length - 3 * pairs
        assert set(rest) <= set(range(vocabulary if fillers else 1))


def test_fillers_are_uniform_over_all_ids():
    task = Recall(31, 30, 2)
    counts = [0] * 31
    for tokens, labels in rows(task, 2000):
        for token, label in zip(tokens[4:], labels[4:], strict=True):
            counts[token] += label == -100
    assert sum(counts) == 2000 * 24
    assert close_to(counts, [1 / 31] * 31)


def test_keys_and_values_are_uniform_and_independent():
    first, second = {}, {}
    for tokens, _ in rows(Recall(12, 8, 2), 12_000):
        first[tokens[0], tokens[2]] = first.get((tokens[0], tokens[2]), 0) + 1
        second[tokens[0], tokens[1]] = second.get((tokens[0], tokens[1]), 0) + 1
    assert set(first) == set(permutations(range(1, 6), 2))
    assert close_to(list(first.values()), [1 / 20] * 20)
    assert set(second) == {(key, value) for key in range(1, 6) for value in range(6, 12)}
    assert close_to(list(second.values()), [1 / 30] * 30)


@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
def test_slots_are_drawn_by_their_power_without_replacement(power):
    task = Recall(29, 14, 2, power=power)
    counts = dict.fromkeys(permutations(range(5), 2), 0)
    for tokens, labels in rows(task, 20_000):
        asked = {tokens[place]: (place - 4) // 2 for place in range(4, 14) if labels[place] != -100}
        counts[asked[tokens[0]], asked[tokens[2]]] += 1
    weights = [slot ** (power - 1) for slot in range(1, 6)]
    total = sum(weights)
    law = [weights[i] / total * weights[j] / (total - weights[i]) for i, j in counts]
    assert sum(law) == pytest.approx(1)
    assert close_to(list(counts.values()), law)


def test_an_example_depends_on_its_index_alone():
    task = Recall(101, 40, 7)
    tokens, labels = task.examples(5, "train", 0, 23)
    for index, count in ((0, 11), (11, 12), (22, 1), (5, 0)):
        part = task.examples(5, "train", index, count)
        assert torch.equal(part[0], tokens[index : index + count])
        assert torch.equal(part[1], labels[index : index + count])
    assert len({tuple(row) for row in tokens.tolist()}) == 23


def test_examples_differ_between_seeds_splits_and_sizes():
    before = torch.get_rng_state()
    task = Recall(101, 40, 7)
    keys = [
        made.examples(seed, split, 0, 5)[0][:, :14:2].tolist()
        for made, seed, split in (
            (task, 5, "train"),
            (task, 6, "train"),
            (task, 5, "valid"),
            (task, 5, "test"),
            (Recall(101, 42, 7), 5, "train"),
        )
    ]
    assert all(keys[i] != keys[j] for i in range(5) for j in range(i))
    assert torch.equal(before, torch.get_rng_state())


def test_the_published_size():
    tokens, labels = Recall(8192, 512, 64).examples(1, "test", 10**9, 3)
    assert (labels != -100).sum(1).tolist() == [64] * 3
    assert (tokens.min() >= 0, tokens.max() < 8192) == (True, True)
    assert tokens[:, :128:2].max() < 4096 <= tokens[:, 1:128:2].min()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((64, 16, 0), "pairs must be at least 1, got 0"),
        ((64, 16, 5), "length must be even and at least 4 pairs = 20, got 16"),
        ((64, 17, 3), "length must be even and at least 4 pairs = 12, got 17"),
        ((16, 16, 3), "vocabulary must be larger than length 16, got 16"),
        ((64, 16, 3, float("nan")), "power must be finite, got nan"),
    ],
)
def test_impossible_sizes_raise(sizes, message):
    with pytest.raises(ValueError, match=message):
        Recall(*sizes)


def test_wrong_arguments_are_named():
    task = Recall(17, 16, 4)
    with pytest.raises(ValueError, match="unknown split 'tests'; did you mean 'test'"):
        task.examples(1, "tests", 0, 1)
    with pytest.raises(ValueError, match="index and count must be at least 0, got -1 and 5"):
        task.examples(1, "test", -1, 5)
