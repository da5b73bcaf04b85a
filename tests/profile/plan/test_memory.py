"""Memory of a tiny decoder with 734 parameters, by hand."""

import pytest

from qkv.profile.plan.activations import Activations
from qkv.profile.plan.memory import plan_memory
from qkv.train.parallel.mesh import Mesh
from qkv.train.parallel.units import find_units
from tests.profile.plan.small import BLOCK, PARAMETERS, REST, TOKENS, accumulating, step

SAVED = Activations(1000, 100, 30, 500, weight_copies=77, rest_copies=13, outputs=8 * TOKENS)


def terms(found):
    return {name: term.value for name, term in found.terms.items()}


def plan(*arguments, **options):
    asked = step(*arguments, **options)
    return plan_memory(asked, find_units(asked.target.module), SAVED)


def test_one_device():
    found = plan()
    state = 4 * PARAMETERS
    assert terms(found) == {
        "parameters": state,
        "gradients": state,
        "optimizer": 2 * state,
        "EMA": state,
        "best weights": state,
        "weights in bfloat16": 77,
        "logits": 12 * 88,
    }
    assert (found.states, found.plain.value, found.recompute.value) == (4 * state, 1000, 100 + 30 + 500)
    assert found.total == 6 * 2936 + 77 + 1056 + 1000
    assert found.total - found.total_with_recompute == 370


def test_replicas_hold_a_flat_copy_of_their_gradients():
    assert terms(plan(Mesh(data=2)))["DDP buckets"] == 4 * PARAMETERS


@pytest.mark.parametrize(("precision", "low"), [("float32", 4), ("bfloat16", 2)])
def test_shards(precision, low):
    """Two shards of even rows: only the 11 rows of the embedding are padded."""
    found = terms(plan(Mesh(data=3, shard=2), precision=precision))
    assert found["parameters"] == found["gradients"] == 4 * (PARAMETERS + 6) // 2 == 1480
    assert found["optimizer"] == 2 * 1480
    assert found["gathered parameters"] == 4 * (REST + 6) + 2 * low * BLOCK
    assert found["whole gradients"] == 4 * (REST + 6) + (low + 4) * BLOCK
    assert found["weights in bfloat16"] == 13
    assert "DDP buckets" not in found


def test_micro_batches_keep_whole_gradients_of_all_blocks():
    found = terms(plan(Mesh(shard=2), settings=accumulating(2), batch=4))
    assert found["whole gradients"] == 4 * PARAMETERS


def test_parts_of_sequences():
    """A second sharded copy for validation; keys and values of the other parts, and a mask of 4 x 8 pairs per layer."""
    found = plan(Mesh(shard=2, sequence=2))
    shard = 4 * (12 * 6 + 2 * 8 + 2 * 428) // 4
    assert terms(found)["validation copy"] == terms(found)["parameters"] == shard
    others = 2 * 4 * 6 * 4 + 4 * 4 * 8  # keys and values of 4 tokens in float32, and a float32 mask
    assert found.plain.value == 1000 + 2 * others
    assert found.recompute.value == 630 + others


def test_a_state_replaces_keys_and_values():
    found = plan(Mesh(shard=2, sequence=2), attention="linear")
    state = 3 * 2 * 2 * 4  # heads x key_dim x value_dim floats: that of the other part, and one of the own chunk
    assert found.plain.value == 1000 + 2 * 2 * state
