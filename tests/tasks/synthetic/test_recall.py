import math

import pytest
import torch

from qkv import tasks
from qkv.data import Recall
from qkv.train import Settings


@pytest.fixture
def job():
    return tasks.tasks["recall"].load({"vocabulary": 32, "length": 16, "pairs": 3, "examples": 20})


def test_examples_do_not_depend_on_how_a_batch_is_cut(job):
    task = job.objective(torch.nn.Identity(), Settings(steps=1, batch_size=6))
    ids = task.order(2)
    assert ids == list(range(12, 18))
    whole = task.collate(ids)
    parts = [task.collate(ids[rank::2]) for rank in range(2)]
    for tensor, even, odd in zip(whole, *parts, strict=True):
        assert torch.equal(tensor[0::2], even)
        assert torch.equal(tensor[1::2], odd)
    assert [t.shape for t in task.collate([])] == [(0, 16), (0, 16)]


def test_a_model_that_knows_the_answers_is_right(job):
    tokens, labels = Recall(32, 16, 3, random_fillers=False).examples(0, "test", 0, 20)

    class Oracle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, given, at):
            assert torch.equal(given, tokens)
            assert torch.equal(at, labels != -100)
            return 9.0 * torch.nn.functional.one_hot(labels[at], 32)

    figures = job.evaluate(Oracle(), "test")
    assert figures == {"examples": 20, "accuracy": 1.0, "scaled_accuracy": 1.0, "chance": 1 / 3}


def test_held_out_score_is_the_loss_of_a_question(job):
    """Not the share of wrong ones: that is 0 for every rate of a kind that can do it, and would choose none."""

    class Even(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, given, at):
            return torch.zeros(int(at.sum()), 32)

    even = Even()
    found = job.objective(even, Settings(steps=1)).validate(even, lambda: None)
    assert found == pytest.approx(math.log(32))


def test_sizes_to_learn_on():
    options = tasks.tasks["recall"].load({"vocabulary": 64, "length": 48, "pairs": 12}).settings
    assert options.sizes() == [(48, 12), (24, 6), (12, 3)]  # 3 pairs have no half
    assert tasks.tasks["recall"].load({"halvings": 1}).settings.sizes() == [(384, 96), (192, 48)]


def test_updates_take_turns_in_size():
    job = tasks.tasks["recall"].load({"vocabulary": 64, "length": 48, "pairs": 12, "halvings": 1})
    task = job.objective(torch.nn.Identity(), Settings(steps=1, batch_size=6))
    updates = [task.collate(task.order(step)) for step in range(4)]
    assert [tokens.shape for tokens, _ in updates] == [(6, 48), (6, 24), (6, 48), (6, 24)]
    assert [int((labels != -100).sum()) for _, labels in updates] == [6 * 12, 6 * 6, 6 * 12, 6 * 6]
    assert not torch.equal(updates[1][0], updates[3][0])


@pytest.mark.parametrize(("setting", "least"), [("halvings", 0), ("examples", 1)])
def test_bad_data_setting(setting, least):
    with pytest.raises(ValueError, match=f"{setting} must be at least {least}, got {least - 1}"):
        tasks.tasks["recall"].load({setting: least - 1})


def test_unknown_data_setting():
    with pytest.raises(ValueError, match="unknown data setting 'pair'; did you mean 'pairs'"):
        tasks.tasks["recall"].load({"pair": 3})


def test_published_sizes():
    preset = tasks.tasks["recall"].presets["published"]()
    options = tasks.tasks["recall"].load(preset.data).settings
    assert options.sizes() == [(64, 4)] * 5 + [(128, 8), (256, 16), (256, 32), (256, 64)]
    assert options.tested() == [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    assert preset.train["steps"] == 180_000 * 32 // 256
    assert preset.model["max_length"] == max(length for length, _ in options.tested())


def test_several_sizes_are_tested_one_by_one():
    data = {"vocabulary": 64, "length": 16, "pairs": 2, "examples": 10, "test_sizes": "16:2,16:4"}
    job = tasks.tasks["recall"].load(data)
    sources = [Recall(64, 16, pairs, random_fillers=False).examples(0, "test", 0, 10) for pairs in (2, 4)]

    class Half(torch.nn.Module):
        """Right for two pairs, wrong for four."""

        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, given, at):
            sign = 9.0 if torch.equal(given, sources[0][0]) else -9.0
            (labels,) = (labels for tokens, labels in sources if torch.equal(tokens, given))
            return sign * torch.nn.functional.one_hot(labels[at], 64)

    chance = (1 / 2 + 1 / 4) / 2
    assert job.evaluate(Half(), "test") == {
        "examples": 20,
        "accuracy": 0.5,
        "scaled_accuracy": pytest.approx((0.5 - chance) / (1 - chance)),
        "length_16_pairs_2_accuracy": 1.0,
        "length_16_pairs_4_accuracy": 0.0,
        "chance": chance,
    }


@pytest.mark.parametrize("text", ["64", "64:4;128:8", "0*64:4", "64:4,", "a:b"])
def test_bad_sizes(text):
    with pytest.raises(ValueError, match="test_sizes must be sizes such as 5\\*64:4,128:8"):
        tasks.tasks["recall"].load({"test_sizes": text})
