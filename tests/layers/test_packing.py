from itertools import pairwise

import pytest
import torch

from qkv.attention import Softmax
from qkv.layers import MultiHead, Packing, pack_documents


def rows_of(*lengths, time):
    """True where documents of these lengths start, in rows of `time` tokens; they must fill them."""
    flat = [place == 0 for length in lengths for place in range(length)]
    return torch.tensor(flat).view(-1, time)


def test_places_and_groups_by_hand():
    """Documents of 3, 1, 2 and 6 in rows of 6: those of 1 and 2 do not begin a row, and are filled up to 2."""
    packing = pack_documents(rows_of(3, 1, 2, 6, time=6))
    assert packing.places.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert packing.moved.tolist() == [3, 4, 5]
    assert [group.tolist() for group in packing.groups] == [[[3, 3], [4, 5]]]
    assert packing.home.tolist() == [0, 2, 3]


def test_where_most_would_be_worked_on_twice_all_documents_are_taken_out():
    """2, 1, 3 and 1, 5: 9 of 12 do not begin a row. 2 and 3 go together, for 1 filled up; any more would be over 3."""
    packing = pack_documents(rows_of(2, 1, 3, 1, 5, time=6))
    assert packing.moved.tolist() == list(range(12))
    assert [group.tolist() for group in packing.groups] == [
        [[2], [6]],
        [[0, 1, 1], [3, 4, 5]],
        [[7, 8, 9, 10, 11]],
    ]
    assert packing.home.tolist() == [2, 3, 0, 5, 6, 7, 1, 8, 9, 10, 11, 12]


def running_sum(*given):
    """Of all that came before in a row; it looks back only."""
    return sum(x.cumsum(1) for x in given)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [0.003, 0.5])
def test_each_document_has_a_running_sum_of_its_own(seed, rate):
    chance = torch.Generator().manual_seed(seed)
    starts = torch.rand(7, 101, generator=chance) < rate
    starts[3, 1] = True
    starts[5] = False
    x, y = torch.randint(-9, 9, (2, 7, 101, 3), generator=chance)
    packing = pack_documents(starts)
    assert (packing.moved.numel() == 7 * 101) == (rate == 0.5)
    starts[:, 0] = True
    firsts = [*starts.flatten().nonzero()[:, 0].tolist(), 7 * 101]
    expected = torch.cat([(x + y).flatten(0, 1)[a:b].cumsum(0) for a, b in pairwise(firsts)])
    assert torch.equal(packing.by_document(running_sum, x, y).flatten(0, 1), expected)
    again = Packing.of(packing.tensors)
    assert torch.equal(again.by_document(running_sum, x, y).flatten(0, 1), expected)


@pytest.mark.parametrize("seed", range(5))
def test_little_is_worked_on_in_vain(seed):
    chance = torch.Generator().manual_seed(seed)
    starts = torch.rand(7, 101, generator=chance) < 10.0 ** -torch.rand((), generator=chance) / 2
    packing = pack_documents(starts)
    worked = sum(group.numel() for group in packing.groups)
    assert worked <= 2 * 7 * 101
    assert worked - packing.moved.numel() <= 7 * 101


def test_rows_of_one_document_need_no_packing():
    assert pack_documents(torch.zeros(3, 5, dtype=torch.bool)) is None
    assert pack_documents(torch.tensor([[True, False], [False, False]])) is None
    assert Packing.of(()) is None


def test_only_causal_attention_can_be_packed():
    packing = pack_documents(rows_of(2, 3, time=5))
    layer, x = MultiHead(6, 2, Softmax()), torch.randn(1, 5, 6)
    with pytest.raises(ValueError, match="packing needs causal=True and no mask"):
        layer(x, packing=packing)
    with pytest.raises(ValueError, match="packing needs causal=True and no mask"):
        layer(x, causal=True, mask=torch.ones(1, 5, dtype=torch.bool), packing=packing)
