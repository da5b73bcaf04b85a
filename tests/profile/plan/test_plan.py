from dataclasses import replace

import pytest
import torch
from torch import nn

from qkv.cost import Input
from qkv.profile.plan.gpus import find_gpu
from qkv.profile.plan.plan import Cluster, StepTime, make_plan
from qkv.profile.plan.request import make_step
from qkv.profile.plan.to_json import plan_to_record
from qkv.profile.spec import ProfileTarget
from qkv.train.parallel.mesh import Mesh
from tests.profile.plan.small import step

H200 = find_gpu("h200")


def test_the_longest_of_the_three_is_the_floor():
    time = StepTime(compute=2.0, memory=3.0, communication=1.0)
    assert (time.floor, time.bottleneck) == (3.0, "memory")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node": 0}, "node=0 must be at least 1: the number of GPUs of a node"),
        ({"network": 0.0}, "network=0 must be above 0, in Gbit/s per GPU"),
        ({"network": float("nan")}, "network=nan must be above 0, in Gbit/s per GPU"),
    ],
)
def test_a_cluster_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        make_plan(step(), H200, **options)


def test_times_by_hand():
    """Seconds of one device are amounts over rates; a slow network of 8 Gbit/s carries a byte in a nanosecond."""
    plan = make_plan(step(Mesh(data=2), precision="bfloat16"), H200, node=1, network=8.0)
    time, again = plan.time(recompute=False), plan.time(recompute=True)
    work = plan.work
    assert time.compute == 2 * (work.forward + work.backward) / 989e12
    assert again.compute == 2 * (work.forward + work.backward + work.recompute) / 989e12
    moved = sum(term.value for term in plan.moved.values())
    assert time.memory == moved / 4.8e12
    assert again.memory == (moved + 2 * 734 + 2 * plan.activations.block_inputs) / 4.8e12
    assert time.communication == again.communication == pytest.approx(4 * 734 * 1e-9)
    assert time.bottleneck == "communication"
    measured = plan.measured_time(recompute=False)
    assert (measured.compute, measured.memory) == (2 * work.total / 790e12, moved / 4.3e12)


def test_measured_rates_are_those_of_bfloat16():
    assert make_plan(step(), H200).measured_time(recompute=False) is None
    assert make_plan(step(precision="bfloat16"), find_gpu("h100")).measured_time(recompute=False) is None


def test_the_network_counts_only_between_nodes():
    asked = step(Mesh(shard=4))
    near, far = (make_plan(asked, H200, node=node).time(recompute=False) for node in (8, 2))
    total = sum(transfer.payload for transfer in make_plan(asked, H200).traffic)
    assert near.communication == pytest.approx(total * 3 / 4 / 450e9)
    assert far.communication == pytest.approx(total / 2 / (2 * 50e9))
    assert Cluster(H200, 8, 400).network_bytes == 50e9


def test_recomputation_may_make_it_fit():
    plan = make_plan(step(length=4096), H200)
    assert plan.fits(recompute=False)
    between = (plan.memory.total + plan.memory.total_with_recompute) // 2
    small = replace(plan, cluster=replace(plan.cluster, gpu=replace(H200, memory=between)))
    assert (small.fits(recompute=False), small.fits(recompute=True)) == (False, True)


def test_only_recomputation_exchanges_states_again():
    plan = make_plan(step(Mesh(sequence=2)), H200)
    names = {recompute: {one.name for one in plan.transfers(recompute=recompute)} for recompute in (False, True)}
    assert names[True] - names[False] == {"sequence: keys and values, recompute"}


def test_a_module_that_reads_values_is_counted_on_the_cpu():
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, x):
            return self.layer(x) * (1 + x.sum().item())

    with torch.device("meta"):
        module = Reading()
    plan = make_plan(make_step(ProfileTarget("mine", module, (Input.parse("float[1,3]"),)), Mesh(), sizes={}), H200)
    assert plan.step.real_weights
    assert (plan.work.forward, plan.units.elements()) == (15, 20)


KEYS = (
    "spec note mesh processes gpu node network_gbit_per_second precision optimizer batch accumulation_steps sizes "
    "per_device parameters memory traffic multiplications memory_traffic recompute"
)
TRANSFER = "name formula calls processes nodes bytes_sent bytes_received seconds only_with_recompute"
VARIANT = "activation_bytes total_bytes fits bytes_sent bytes_received time time_at_measured_rates"


def test_the_keys_of_the_record():
    record = plan_to_record(make_plan(step(Mesh(shard=2, sequence=2), batch=6), H200))
    assert set(record) == set(KEYS.split())
    assert (record["sizes"], record["per_device"]) == ({"n": 8}, {"examples": 3, "n": 4})
    assert record["parameters"] == {"all": 734, "rest": 78, "largest_block": 328, "blocks": 2}
    assert set(record["traffic"][0]) == set(TRANSFER.split())
    plain, again = record["recompute"]["false"], record["recompute"]["true"]
    assert set(plain) == set(VARIANT.split())
    terms = sum(term["bytes"] for term in record["memory"]["terms"].values())
    assert plain["total_bytes"] == terms + plain["activation_bytes"]
    assert again["bytes_sent"] - plain["bytes_sent"] == sum(
        one["bytes_sent"] for one in record["traffic"] if one["only_with_recompute"]
    )
    assert plain["time"]["tokens_per_second"] == 48 / plain["time"]["floor_seconds"]
    assert plain["time_at_measured_rates"] is None
