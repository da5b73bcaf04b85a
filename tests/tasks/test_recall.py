import pytest
import torch

from qkv import tasks
from qkv.data import Recall
from qkv.train import Settings


@pytest.fixture
def job():
    return tasks.jobs["recall"].load({"vocabulary": 32, "length": 16, "pairs": 3, "examples": 20})


def test_examples_do_not_depend_on_how_a_batch_is_cut(job):
    task = job.task(torch.nn.Identity(), Settings(steps=1, batch_size=6))
    ids = task.order(2)
    assert ids == list(range(12, 18))
    whole = task.collate(ids)
    parts = [task.collate(ids[rank::2]) for rank in range(2)]
    for tensor, even, odd in zip(whole, *parts, strict=True):
        assert torch.equal(tensor[0::2], even)
        assert torch.equal(tensor[1::2], odd)
    assert [t.shape for t in task.collate([])] == [(0, 16), (0, 16)]


def test_a_model_that_knows_the_answers_is_right(job):
    tokens, labels = Recall(32, 16, 3).examples(0, "test", 0, 20)

    class Oracle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(1))

        def forward(self, given):
            assert torch.equal(given, tokens)
            return torch.nn.functional.one_hot(labels.clamp(min=0), 32).float()

    figures = job.evaluate(Oracle(), "test")
    assert figures == {"examples": 20, "accuracy": 1.0, "chance": 1 / 3}


def test_unknown_data_setting():
    with pytest.raises(ValueError, match="unknown data setting 'pair'; did you mean 'pairs'"):
        tasks.jobs["recall"].load({"pair": 3})
