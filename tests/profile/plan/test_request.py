from dataclasses import replace

import pytest
from torch import nn

from qkv.cost import Input
from qkv.profile.plan.request import make_step
from qkv.profile.spec import resolve_spec
from qkv.train import Settings
from qkv.train.parallel.mesh import Mesh
from tests.profile.plan.small import accumulating, step, target


def test_a_step_is_divided_over_the_mesh():
    found = step(Mesh(data=2, shard=3, sequence=4), length=20, batch=12)
    assert (found.shards, found.replicas) == (12, 2)
    assert (found.batch_per_device, found.sizes, found.tokens) == (2, {"n": 5}, 240)
    assert found.call.inputs == (Input.parse("int[2,n]"),)


def test_without_shard_every_process_has_all_parameters():
    found = step(Mesh(data=2, sequence=4), length=20)
    assert (found.shards, found.replicas, found.batch) == (1, 8, 2)


def test_micro_batches_and_the_optimizer_are_those_of_the_settings():
    found = step(settings=accumulating(4), batch=10)
    assert (found.accumulation, found.batch_per_device, found.optimizer) == (4, 3, "adamw")
    assert step(settings=Settings(steps=1, optimizer="sgd")).optimizer == "momentum"
    assert step(optimizer="rmsprop").optimizer == "rmsprop"


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (Mesh(data=2, shard=2), {"batch": 6}, r"batch=6 must be divisible by data\*shard=4"),
        (Mesh(), {"batch": 0}, r"batch=0 must be divisible by data\*shard=1"),
        (Mesh(sequence=3), {"length": 8}, r"sequence=3 must divide n=8"),
        (Mesh(), {"length": 9000}, r"n=9,000 exceeds the longest sequence of tiny, 8,192; .*max_length=9000"),
        (Mesh(), {"precision": "bfloat"}, r"unknown precision 'bfloat'; did you mean 'bfloat16'\?"),
        (Mesh(), {"optimizer": "adm"}, r"unknown optimizer 'adm'; did you mean 'adam'\?"),
    ],
)
def test_a_request_that_does_not_divide_or_exist(mesh, options, message):
    with pytest.raises(ValueError, match=message):
        step(mesh, **options)


def test_only_a_decoder_splits_its_tokens():
    model = replace(target(), label="mine", module=nn.Linear(3, 5), inputs=(Input.parse("float[1,3]"),))
    message = r"sequence=2 splits the tokens of a decoder, but mine is a Linear; use data and shard"
    with pytest.raises(ValueError, match=message):
        make_step(model, Mesh(sequence=2), sizes={})


def test_what_has_nothing_to_train():
    model = nn.Linear(3, 5).requires_grad_(False)
    frozen = replace(target(), label="frozen", module=model, inputs=(Input.parse("float[1,3]"),))
    with pytest.raises(ValueError, match="frozen has no parameter to train: Linear"):
        make_step(frozen, Mesh(), sizes={})


def test_a_task_that_updates_its_model_itself():
    with pytest.raises(ValueError, match="words:small updates its model itself, without an optimizer, in one process"):
        make_step(resolve_spec("words:small"), Mesh(), sizes={})


def test_the_first_axis_becomes_the_batch():
    fixed = replace(target(), inputs=(Input.parse("int[7,n]"),))
    with pytest.raises(ValueError, match=r"input int\[7,n\] must have a first axis of 1, which becomes the batch"):
        make_step(fixed, Mesh(), sizes={"n": 8})
