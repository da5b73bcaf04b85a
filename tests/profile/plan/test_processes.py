"""Plans against what real processes hold and send, and what a real forward pass saves."""

import pytest

from benchmarks.plan import measure_meshes, measure_saved

STATES = ("parameters held", "gradients held", "optimizer held")
REDUCED = {"all-gather", "reduce-scatter", "all-reduce"}
PEAK = "peak of a step beyond the model"


@pytest.mark.slow
@pytest.mark.process
def test_what_processes_hold_and_send():
    replicas, sharded = (found["rows"] for found in measure_meshes(("data=4", "data=2,shard=2")))
    assert {name.removesuffix(" sent") for name in replicas} - {*STATES, PEAK} == {"all-reduce"}
    assert {name.removesuffix(" sent") for name in sharded} - {*STATES, PEAK} == REDUCED
    for rows in (replicas, sharded):
        assert 1 <= rows.pop(PEAK)["ratio"] < 2  # not all of it at once
        assert {row["ratio"] for row in rows.values()} == {1}


@pytest.mark.parametrize("kind", ["softmax", "2*linear+forget,delta+write"])
def test_what_a_forward_pass_saves(kind):
    rows = measure_saved(kind, 3, 37)["rows"]
    assert [row["ratio"] for row in rows.values()] == [1, 1]
