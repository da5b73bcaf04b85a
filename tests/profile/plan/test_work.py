"""Multiplications of a tiny decoder with 2 blocks, by hand."""

from dataclasses import replace

import torch
from torch import nn

from qkv.cost import Input, count_multiplications
from qkv.profile.plan.activations import count_activations
from qkv.profile.plan.request import make_step
from qkv.profile.plan.work import Work, plan_moved, plan_work
from qkv.profile.spec import ProfileTarget
from qkv.train import Settings
from qkv.train.parallel.mesh import Mesh
from qkv.train.parallel.units import find_units
from tests.profile.plan.small import EMBEDDING, PARAMETERS, accumulating, step

PROJECTIONS, FEED_FORWARD = 4 * 6 * 6, 2 * 6 * 10


def forward(tokens, pairs):
    block = tokens * (PROJECTIONS + FEED_FORWARD) + pairs * 3 * (2 + 2)
    return 2 * block + tokens * EMBEDDING, 2 * block


def test_one_device():
    """Of 8 tokens each sees itself and those before: 36 pairs."""
    whole, blocks = forward(8, 36)
    assert plan_work(step()) == Work(whole, 2 * whole, blocks)


def test_micro_batches_and_examples_add_up():
    whole, blocks = forward(3 * 8, 3 * 36)
    assert plan_work(step(batch=12, settings=accumulating(4))) == Work(4 * whole, 8 * whole, 4 * blocks)
    assert plan_work(step(Mesh(data=2, shard=2), batch=12)).forward == whole


def test_the_last_part_of_a_sequence_has_most_pairs():
    """The last 4 of 8 tokens see 5 to 8 tokens."""
    whole, blocks = forward(4, 5 + 6 + 7 + 8)
    assert plan_work(step(Mesh(sequence=2))) == Work(whole, 2 * whole, blocks)


def test_parts_of_a_linear_kind_are_equal():
    found = [plan_work(step(Mesh(sequence=parts), length=1024, attention="linear")).forward for parts in (1, 4)]
    assert found[0] == 4 * found[1]


def test_a_short_linear_sequence_costs_what_runs():
    """Its state would take more products than all pairs do: the form that runs is the quadratic one."""
    short = plan_work(step(length=2, attention="taylor", changes={"positions": "none"}))
    assert short.forward == forward(2, 4)[0]


def test_a_module_without_a_declared_cost():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7))
    asked = make_step(ProfileTarget("mine", model, (Input.parse("float[1,3]"),)), Mesh(data=2), sizes={}, batch=8)
    x = torch.zeros(4, 3)
    with count_multiplications() as counted:
        model(x).sum().backward()
    found = plan_work(asked)
    assert (found.forward, found.recompute) == (4 * (15 + 35), 0)
    assert found.forward + found.backward == counted.total == 4 * (2 * 15 + 3 * 35)  # x needs no gradient


def test_bytes_through_memory():
    """AdamW reads parameter, gradient and two moments, and writes three of them back: 7 floats per parameter."""
    asked = step(Mesh(), settings=Settings(steps=1, ema_decay=0.9), precision="bfloat16")
    units = find_units(asked.target.module)
    saved = replace(count_activations(asked.call, asked.sizes, "float32"), saved=1000, outputs=88)
    assert {name: term.value for name, term in plan_moved(asked, units, saved).items()} == {
        "weights": 2 * 2 * PARAMETERS,
        "gradients": 4 * PARAMETERS,
        "optimizer": 7 * 4 * PARAMETERS,
        "activations": 2 * 1000,
        "logits": 2 * 12 * 88,
        "EMA": 3 * 4 * PARAMETERS,
    }
