import random
from hashlib import blake2b
from itertools import pairwise

import pytest

from qkv.data import Buckets, buckets, shard


def epoch_of(batches, epoch):
    return [batches.batch(epoch, position) for position in range(batches.batches_per_epoch)]


def lengths_of(count, longest=53, seed=1):
    draw = random.Random(seed)
    return [draw.randint(1, longest) for _ in range(count)]


def shuffled(seed, purpose, epoch, count):
    """SplitMix64 in plain Python, and a sort."""
    digest = blake2b(f'[{seed},"{purpose}",{epoch}]'.encode(), digest_size=8).digest()
    state, drawn = int.from_bytes(digest, "big") // 2, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        drawn.append((x ^ x >> 31) >> 11)
    return sorted(range(count), key=drawn.__getitem__)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_order_by_its_definition(pairs):
    sources, targets = lengths_of(1109, 5), lengths_of(1109, 7, seed=2)
    lengths = list(zip(sources, targets, strict=True)) if pairs else sources
    order = shuffled(11, "order of the examples", 4, 1109)
    pools = [sorted(order[start : start + 300], key=lengths.__getitem__) for start in range(0, 1109, 300)]
    cut = [pool[start : start + 3] for pool in pools for start in range(0, len(pool), 3)]
    expected = [cut[place] for place in shuffled(11, "order of the batches", 4, len(cut))]
    assert epoch_of(Buckets(lengths, 3, seed=11), 4) == expected


@pytest.mark.parametrize(
    ("count", "size", "batches", "last"), [(1009, 7, 145, 1), (12, 4, 3, 4), (5, 7, 1, 5), (1, 1, 1, 1)]
)
def test_every_id_occurs_once_per_epoch(count, size, batches, last):
    made = Buckets(lengths_of(count), size, seed=3)
    assert made.batches_per_epoch == batches
    for epoch in (0, 1, 17):
        drawn = epoch_of(made, epoch)
        assert sorted(number for batch in drawn for number in batch) == list(range(count))
        assert sorted(map(len, drawn)) == sorted([last] + [size] * (batches - 1))


def test_a_batch_is_a_pure_function_of_seed_epoch_and_position():
    lengths = lengths_of(500)
    forwards = Buckets(lengths, 8, seed=3)
    expected = {(epoch, position): forwards.batch(epoch, position) for epoch in range(3) for position in range(63)}
    asked = list(expected)
    random.Random(0).shuffle(asked)
    again = Buckets(lengths, 8, seed=3)
    assert {place: again.batch(*place) for place in asked[:40]} == {place: expected[place] for place in asked[:40]}
    assert Buckets(lengths, 8, seed=3).batch(2, 62) == expected[2, 62]


def test_order_differs_between_seeds_and_epochs():
    lengths = lengths_of(500)
    orders = [epoch_of(Buckets(lengths, 8, seed), epoch) for seed in (3, 5) for epoch in (0, 1)]
    company = [{frozenset(batch) for batch in order} for order in orders]
    assert all(len(company[i] & company[j]) < 10 for i in range(4) for j in range(i))


def test_lengths_are_similar_within_a_batch_and_shuffled_between_batches():
    lengths = lengths_of(20_011)
    drawn = [[lengths[number] for number in batch] for batch in epoch_of(Buckets(lengths, 16, seed=3), 0)]
    padded = sum(max(batch) * len(batch) for batch in drawn)
    assert 1 < padded / sum(lengths) < 1.03
    longest = [max(batch) for batch in drawn]
    rises = sum(a < b for a, b in pairwise(longest))
    assert 0.4 < rises / len(longest) < 0.6


def test_only_the_current_epoch_is_cached(monkeypatch):
    calls = []
    real = buckets.uniforms
    monkeypatch.setattr(buckets, "uniforms", lambda *inputs: calls.append(inputs) or real(*inputs))
    made = Buckets(lengths_of(50), 8, seed=3)
    for epoch, position in ((0, 0), (0, 6), (1, 1), (1, 0), (0, 0)):
        made.batch(epoch, position)
    assert len(calls) == 3 * 2


def test_steps_map_to_epoch_and_position():
    made = Buckets(lengths_of(50), 8, seed=3)
    assert [made.locate(step) for step in (0, 6, 7, 20, 21)] == [(0, 0), (0, 6), (1, 0), (2, 6), (3, 0)]


def test_shards_partition_a_batch():
    ids = [31, 37, 41, 43, 47, 53, 59]
    assert [shard(ids, rank, 3) for rank in range(3)] == [[31, 43, 59], [37, 47], [41, 53]]
    assert shard([7], 1, 2) == []
    assert shard((7, 5), 0, 1) == [7, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Buckets([], 3, 0), "lengths must hold at least one length, got none"),
        (lambda: Buckets([5], 0, 0), "batch_size must be at least 1, got 0"),
        (lambda: Buckets([5, -1], 3, 0), "lengths must be integers or pairs of integers, at least 0, got 5"),
        (lambda: Buckets([2.5], 3, 0), "lengths must be integers"),
        (lambda: Buckets([5], 3, 0).batch(-1, 0), "epoch must be at least 0, got -1"),
        (lambda: Buckets([5, 5], 1, 0).batch(0, 2), "position must be 0 to 1, got 2"),
        (lambda: Buckets([5, 5], 1, 0).batch(0, -1), "position must be 0 to 1, got -1"),
        (lambda: Buckets([5], 3, 0).locate(-7), "step must be at least 0, got -7"),
        (lambda: shard([5], 2, 2), "rank must be 0 to world_size - 1 = 1, got 2"),
        (lambda: shard([5], -1, 2), "rank must be 0 to world_size - 1 = 1, got -1"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
