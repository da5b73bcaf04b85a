from itertools import pairwise

import pytest
import torch

from qkv.data import ShardRows, TokenShards, shard
from qkv.data.shards.shard_rows import RowOrder
from qkv.errors import QkvError
from tests.data.shards.corpora import make_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return TokenShards(make_shards(tmp_path_factory.mktemp("made")))


@pytest.mark.parametrize(
    ("count", "block", "window"), [(1, 5, 3), (4, 5, 3), (5, 5, 3), (15, 5, 3), (16, 5, 3), (101, 7, 3), (9, 1, 4)]
)
def test_each_epoch_has_each_row_once(count, block, window):
    """Whole blocks and windows or not, and with a last block that is a window of its own."""
    order = RowOrder(count, block, seed=3, window=window)
    found = order.rows(0, 3 * count)
    assert len(found) == 3 * count
    for epoch in range(3):
        assert sorted(found[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own():
    found = RowOrder(1000, 10, 0).rows(0, 2000)
    assert len({tuple(part) for part in (found[:1000], found[1000:], RowOrder(1000, 10, 1).rows(0, 1000))}) == 3
    assert found[:1000] != list(range(1000))


def test_a_window_reads_from_few_blocks():
    """A window of 3 blocks of 7 rows holds 3 runs of neighboring rows, not the same ones in each epoch."""
    order = RowOrder(10_000, 7, seed=0, window=3)
    for first in (0, 21, 10_000, 10_021):
        rows = sorted(order.rows(first, 21))
        borders = [before for before, after in pairwise(rows) if after != before + 1]
        assert len(borders) <= 3  # one more where a block goes over the end of the corpus
    starts = [sorted(order.rows(epoch * 10_000, 21))[0] % 7 for epoch in range(20)]
    assert len(set(starts)) > 3


def test_the_order_is_a_pure_function_of_seed_and_step(shards):
    rows = ShardRows(shards, 11, 4, seed=5)
    forwards = [rows.batch(step) for step in range(400)]
    again = ShardRows(shards, 11, 4, seed=5)
    assert [again.batch(step) for step in reversed(range(400))] == forwards[::-1]
    assert again.batch(10**12) == rows.batch(10**12)


def test_two_ranks_predict_each_token_once_per_epoch(shards):
    """All but the first token, and fewer than a row at the end; batches of 5 in as many steps as rows are 5 epochs."""
    rows = ShardRows(shards, 11, 5, seed=0)
    count = (len(shards) - 1) // 11
    assert rows.count == count
    times = torch.zeros(2, len(shards), dtype=torch.int64)
    for step in range(count):
        for rank in range(2):
            for row in shard(rows.batch(step), rank, 2):
                times[rank, row * 11 + 1 : row * 11 + 12] += 1
    assert times.sum(0).tolist() == [0] + [5] * 11 * count + [0] * (len(shards) - 1 - 11 * count)
    assert times.sum(1).tolist() == [3 * 11 * count, 2 * 11 * count]


def test_rows_are_neighbors_that_share_a_token(shards):
    rows = ShardRows(shards, 11, 5, seed=0)
    whole = shards.read(0, len(shards))
    assert all(torch.equal(rows.read(row), whole[row * 11 : row * 11 + 12]) for row in range(rows.count))


def test_bad_rows(shards):
    with pytest.raises(QkvError, match="the text is shorter than one row of 5000 tokens"):
        ShardRows(shards, 5000, 4, 0)
    with pytest.raises(ValueError, match="length and batch_size must be at least 1, got 11 and 0"):
        ShardRows(shards, 11, 0, 0)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        ShardRows(shards, 11, 4, 0).batch(-1)
