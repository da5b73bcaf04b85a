"""Models whose sequences are split: which can be, their checkpoints, and what stays whole."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from qkv.attention import Attention, Linear, SequenceGroup
from qkv.layers import SequenceModel, pack_documents, parallelize_sequence, whole_sequences
from qkv.models import Decoder, DecoderConfig, EncoderDecoder, EncoderDecoderConfig
from tests.attention.parallel.one_process import one_process


def small():
    return Decoder(DecoderConfig(dim=8, heads=2, hidden_dim=6, layers=1, max_length=13), 5)


def test_checkpoints_are_those_of_one_process():
    model = small()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    tokens = torch.randint(0, 5, (2, 7))
    logits = model(tokens)
    with one_process() as group:
        parallelize_sequence(model, group)
        assert torch.equal(model(tokens), logits)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def test_sequences_can_be_whole_for_a_while():
    model = small()
    with one_process() as group:
        parallelize_sequence(model)
        assert isinstance(model.sequence_group, SequenceGroup)
        parallelize_sequence(model, group)
        with whole_sequences(nn.Sequential(model)):
            assert model.sequence_group is None
        assert model.sequence_group is group
        assert deepcopy(model).sequence_group is group


def test_what_cannot_be_split_is_named():
    class Whole(Linear):
        summarize = Attention.summarize

    sizes = EncoderDecoderConfig(dim=8, heads=2, hidden_dim=6, max_length=13)
    with one_process() as group:
        for model in (EncoderDecoder(sizes, 5, 5), nn.LSTM(2, 3)):
            with pytest.raises(ValueError, match=f"{type(model).__name__} cannot split its sequences"):
                parallelize_sequence(model, group)
        model = small()
        model.blocks[0].attention.attention = Whole()
        with pytest.raises(ValueError, match=r"blocks\.0\.attention cannot split .* has no `summarize`"):
            parallelize_sequence(model, group)
    assert SequenceModel.sequence_group is None


def test_the_packing_of_a_part_needs_a_split_model():
    packing = pack_documents(torch.tensor([[False, True, False, True]]))
    assert packing.part(1, 4).positions.tolist() == [[0, 1, 0]]
    assert packing.part(1, 4).starts.tolist() == [[True, False, True]]
    with pytest.raises(ValueError, match="packing is that of a part of each row"):
        small()(torch.zeros(1, 3, dtype=torch.long), packing=packing.part(1, 4))
