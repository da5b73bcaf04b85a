import torch
from torch import nn

from qkv.models import family
from qkv.train.parallel.units import find_stacks, find_units, only_blocks, shard_elements
from tests.profile.plan.small import BLOCK, DIM, EMBEDDING, HIDDEN, LAYERS, PARAMETERS, REST, target


def test_the_units_of_a_decoder():
    units = find_units(target().module)
    assert [(unit.name, unit.elements()) for unit in units.all] == [
        ("the rest", REST),
        ("blocks.0", BLOCK),
        ("blocks.1", BLOCK),
    ]
    assert (REST, BLOCK, PARAMETERS) == (78, 328, 734)
    assert (units.elements(), units.largest_block()) == (734, 328)


def test_shards_are_padded_to_equal_rows():
    """Of 4 shards: 11 rows of the embedding become 12, 6 become 8, 10 become 12."""
    units = find_units(target().module)
    assert shard_elements(nn.Parameter(torch.empty(EMBEDDING // DIM, DIM)), 4) == 3 * 6
    assert units.root.elements(4) == 12 * 6 + 2 * 8
    attention, norms = 4 * (8 * DIM + 8), 4 * 8
    feed_forward = 12 * DIM + 12 + 8 * HIDDEN + 8
    assert units.largest_block(4) == attention + norms + feed_forward == 428
    assert units.elements(4) == 88 + LAYERS * 428


def test_cross_attention_stays_with_the_rest():
    """Its keys and values are computed before its block runs, so it cannot be gathered with it."""
    chosen = family("encoder_decoder")
    with torch.device("meta"):
        model = chosen.build(
            chosen.configure({"dim": 6, "heads": 3, "hidden_dim": 10, "encoder_layers": 2, "decoder_layers": 2}), 11, 13
        )
    units = find_units(model)
    assert [(unit.name, unit.elements()) for unit in units.blocks] == [("encoder.0", BLOCK), ("encoder.1", BLOCK)]
    assert units.elements() == sum(p.numel() for p in model.parameters())


def test_a_parameter_of_two_blocks_stays_with_the_rest():
    shared = nn.Linear(3, 5, bias=False)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared), nn.Sequential(nn.Linear(2, 7))])
    units = find_units(model)
    assert [(unit.name, unit.elements()) for unit in units.all] == [("the rest", 15), ("blocks.2", 21)]


def test_stacks_are_reduced_and_restored():
    model = target().module
    stacks = find_stacks(model)
    blocks = stacks[0].blocks
    with only_blocks(model, stacks, {"blocks": blocks[:1]}):
        assert list(model.blocks) == [blocks[0]]
        with only_blocks(model, stacks, {}):
            assert len(model.blocks) == 0
    assert tuple(model.blocks) == blocks
