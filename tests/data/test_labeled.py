import pytest
import torch

from qkv.data import LabeledExamples, ShuffledBatches


def test_every_example_occurs_once_per_epoch_in_full_batches():
    batches = ShuffledBatches(17, 5, seed=3)
    stream = [number for step in range(34) for number in batches.batch(step)]
    assert len(stream) == 170
    for epoch in range(10):
        assert sorted(stream[17 * epoch : 17 * (epoch + 1)]) == list(range(17))
    assert stream[:17] != stream[17:34]


def test_the_order_is_a_function_of_seed_and_step():
    batches = ShuffledBatches(17, 5, seed=3)
    forwards = [batches.batch(step) for step in range(20)]
    assert [ShuffledBatches(17, 5, seed=3).batch(step) for step in reversed(range(20))] == forwards[::-1]
    assert [ShuffledBatches(17, 5, seed=4).batch(step) for step in range(20)] != forwards


def test_a_batch_is_never_larger_than_the_set():
    assert sorted(ShuffledBatches(4, 64, seed=0).batch(7)) == [0, 1, 2, 3]


def test_a_fraction_of_each_class_is_held_out():
    labels = torch.tensor([0] * 50 + [1] * 20 + [2] * 7)
    examples = LabeledExamples(torch.arange(77), labels)
    rest, held = examples.hold_out(0.1)
    assert held.labels.bincount(minlength=3).tolist() == [5, 2, 0]
    assert sorted([*rest.inputs.tolist(), *held.inputs.tolist()]) == list(range(77))
    assert torch.equal(labels[held.inputs], held.labels)
    assert torch.equal(examples.hold_out(0.1)[1].inputs, held.inputs)
    assert not torch.equal(examples.hold_out(0.1, seed=1)[1].inputs, held.inputs)
    assert examples.hold_out(0.1, min_class_size=7)[1].labels.bincount(minlength=3).tolist() == [5, 2, 1]
    assert examples.hold_out(0.1, min_class_size=8)[1].labels.bincount(minlength=3).tolist() == [5, 2, 0]


def test_bad_input():
    with pytest.raises(ValueError, match="labels and inputs must have the same length, got 3 and 5"):
        LabeledExamples(torch.zeros(5, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="count and batch_size must be at least 1, got 0 and 5"):
        ShuffledBatches(0, 5, 0)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        ShuffledBatches(5, 5, 0).batch(-1)
