import pytest
import torch

from qkv.attention import Softmax
from qkv.layers import MultiHead, Packing, pack_documents


def rows_of(*lengths, time):
    """True where documents of these lengths start, in rows of `time` tokens; they must fill them."""
    flat = [place == 0 for length in lengths for place in range(length)]
    return torch.tensor(flat).view(-1, time)


def test_places_and_groups_by_hand():
    """Documents of 3, 1, 2 and 6 in rows of 6: those of 1, 2 and 3 are filled up to 3, for 3 tokens of 12 wasted."""
    packing = pack_documents(rows_of(3, 1, 2, 6, time=6))
    assert packing.places.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert [group.tolist() for group in packing.groups] == [
        [[3, 3, 3], [4, 5, 5], [0, 1, 2]],
        [[6, 7, 8, 9, 10, 11]],
    ]
    assert packing.home.tolist() == [[6, 7, 8, 0, 3, 4], [9, 10, 11, 12, 13, 14]]


@pytest.mark.parametrize("seed", range(5))
def test_packing_undoes_unpacking_and_wastes_little(seed):
    chance = torch.Generator().manual_seed(seed)
    starts = torch.rand(7, 101, generator=chance) < 10.0 ** -torch.rand((), generator=chance) / 2
    starts[3] = True  # a row of documents of one token each
    starts[5] = False
    packing = pack_documents(starts)
    x = torch.randn(7, 101, 3, generator=chance)
    parts = packing.unpack(x)
    assert torch.equal(packing.pack(parts), x)
    assert sum(part.shape[0] * part.shape[1] for part in parts) <= 2 * 7 * 101
    starts[:, 0] = True
    assert sum(len(group) for group in packing.groups) == int(starts.sum())
    again = Packing.of(packing.tensors)
    assert torch.equal(again.pack(again.unpack(x)), x)


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
