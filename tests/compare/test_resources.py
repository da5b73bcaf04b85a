"""Closed forms for a decoder of dim 8, 2 layers, 1 head, convolution 3, 16 tokens, tied, length 8."""

import pytest
import torch

from qkv import tasks
from qkv.attention import Taylor
from qkv.compare.candidates import Grid, make_candidates
from qkv.compare.resources import measure_resources
from qkv.cost import Shape
from tests.tasks.tiny import CHANGES, TINY, write_pairs


def cost(attention):
    (only,) = make_candidates("recall", None, CHANGES, Grid(attention))
    task = tasks.tasks["recall"].load(TINY)
    return measure_resources(only.config, task, task.example_batch(only.config.train), "cpu")


def test_softmax():
    found = cost("softmax")
    # table; 2 blocks of 4 projections with biases, taps, two norms; the last norm
    assert found.parameters == 16 * 8 + 2 * (4 * (64 + 8) + 8 * 3 + 2 * 16) + 16
    # keys and values of 8 tokens and the 2 tokens before, in float32
    assert found.state_bytes == 2 * 4 * (2 * 8 * 8 + 2 * 8)
    # projections, q.k and weights.v of every pair; prediction for 2 questions (convolutions are no matrix product)
    assert found.multiplications == 2 * (8 * 4 * 64 + 2 * 8 * 8 * 8) + 2 * 8 * 16
    # AdamW's two moments and the gradient of every parameter are there at once
    assert found.peak_bytes >= 3 * 4 * found.parameters


def test_taylor_has_the_state_that_its_cost_says():
    shape = Shape(1, 1, 8, 8, 4, 8, causal=True)
    attention = sum(Taylor().cost(shape).state.values())
    assert cost("taylor:key_dim=4").state_bytes == 2 * (attention + 4 * 2 * 8)


@pytest.mark.parametrize(("attention", "held"), [("none", 0), ("additive", 5), ("softmax", 5)])
def test_a_recurrent_model_holds_the_source_only_if_it_attends(tmp_path, attention, held):
    changes = {"model": {"dim": 6}, "train": {"steps": 1}}
    (only,) = make_candidates("pairs", None, changes, Grid(models=f"recurrent:attention={attention}"))
    task = tasks.tasks["pairs"].load(write_pairs(tmp_path))
    row = task.example_batch(only.config.train)
    source = (torch.ones(1, held or 5, dtype=torch.int64), None, *row[2:])
    found = measure_resources(only.config, task, source, "cpu")
    # two states of the cell; the last context and the encoded source
    assert found.state_bytes == 4 * 6 * (2 + (held > 0) + held)
    assert found.multiplications > 0


def test_the_example_is_of_median_length(tmp_path):
    task = tasks.tasks["pairs"].load(write_pairs(tmp_path))
    lengths = sorted(len(pair.source) for pair in task.data.splits["valid"])
    settings = make_candidates("pairs", None, {}, Grid(models="recurrent"))[0].config.train
    assert task.example_batch(settings)[0].shape == (1, lengths[len(lengths) // 2])
