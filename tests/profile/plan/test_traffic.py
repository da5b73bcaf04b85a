"""Bytes sent by hand: a ring sends (n - 1) / n of the tensor per pass."""

import pytest

from qkv.profile.plan.gpus import find_gpu
from qkv.profile.plan.traffic import Ranks, Transfer, plan_traffic
from qkv.train.parallel.mesh import Mesh
from qkv.train.parallel.units import find_units
from tests.profile.plan.small import BLOCK, PARAMETERS, REST, accumulating, step


def sent(*arguments, **options):
    asked = step(*arguments, **options)
    return {
        transfer.name: (transfer.calls, transfer.sent)
        for transfer in plan_traffic(asked, find_units(asked.target.module))
    }


def test_one_device_sends_nothing():
    assert sent() == {}


def test_ddp():
    assert sent(Mesh(data=4)) == {"DDP: all-reduce of gradients": (1, 2 * 3 * PARAMETERS)}
    assert sent(Mesh(data=4), settings=accumulating(2)) == sent(Mesh(data=4))


@pytest.mark.parametrize(("precision", "low"), [("float32", 4), ("bfloat16", 2)])
def test_fsdp(precision, low):
    """Two shards: half of everything is sent, the embedding padded to 12 rows; the rest is not gathered again."""
    rest, blocks = 4 * (REST + 6), 2 * BLOCK
    assert sent(Mesh(shard=2), precision=precision) == {
        "FSDP2: all-gather, forward": (3, (rest + low * blocks) // 2),
        "FSDP2: all-gather, backward": (2, low * blocks // 2),
        "FSDP2: reduce-scatter of gradients": (3, (rest + 4 * blocks) // 2),
    }


def test_micro_batches_gather_each_time_and_reduce_once():
    once, twice = sent(Mesh(shard=2), batch=4), sent(Mesh(shard=2), batch=4, settings=accumulating(2))
    gathered = "FSDP2: all-gather, forward"
    assert twice[gathered] == tuple(2 * x for x in once[gathered])
    assert twice["FSDP2: reduce-scatter of gradients"] == once["FSDP2: reduce-scatter of gradients"]


def test_hsdp_reduces_a_shard_among_the_replicas():
    found = sent(Mesh(data=3, shard=2))
    assert found["HSDP: all-reduce of gradients"] == (3, 2 * 2 * (4 * (PARAMETERS + 6) // 2) // 3)


def test_parts_of_sequences():
    """Each of 2 layers gives the keys and values of 4 tokens to 2 others; without shards the rest is DDP."""
    keys_and_values = 2 * 4 * 6 * 4
    found = sent(Mesh(sequence=3), length=12)
    phases = ("forward", "backward", "recompute")
    assert {name: found[name] for name in found if name.startswith("sequence")} == {
        f"sequence: keys and values, {phase}": (2, 2 * 2 * keys_and_values) for phase in phases
    }
    assert found["DDP: all-reduce of gradients"] == (1, 2 * 2 * 4 * PARAMETERS // 3)
    states = sent(Mesh(sequence=3), length=12, attention="linear", changes={"convolution": 2})
    assert states["sequence: states, forward"] == (2, 2 * 2 * 48)
    assert states["sequence: convolutions, backward"] == (2, 2 * 2 * 4 * 6)


@pytest.mark.parametrize(
    ("group", "per_node", "nodes"),
    [
        (Ranks(8, 1), 8, 1),
        (Ranks(64, 1), 8, 8),
        (Ranks(4, 2), 4, 1),
        (Ranks(4, 8), 1, 4),
        (Ranks(16, 4), 2, 8),
        (Ranks(12, 1), 8, 2),
    ],
)
def test_the_nodes_of_a_group(group, per_node, nodes):
    assert (group.per_node(8), group.nodes(8)) == (per_node, nodes)


def test_the_shortest_time_of_a_transfer():
    """64 processes on 8 nodes all-gather 512 GB: 504 GB at 450 GB/s, or 7/8 of it through 8 cards of 50 GB/s."""
    gathered = Transfer("x", "", 1, 512 * 10**9, Ranks(64, 1))
    assert gathered.link_seconds(find_gpu("h200"), 8) == pytest.approx(504 / 450)
    assert gathered.network_seconds(8, 50e9) == pytest.approx(448 / 400)
    assert Transfer("x", "", 1, 8, Ranks(8, 1)).network_seconds(8, 50e9) == 0
    reduced = Transfer("x", "", 1, 100 * 10**9, Ranks(4, 8), passes=2)  # one process on each of 4 nodes
    assert reduced.sent == 150 * 10**9
    assert reduced.link_seconds(find_gpu("h200"), 8) == 0
    assert reduced.network_seconds(8, 50e9) == pytest.approx(3)
