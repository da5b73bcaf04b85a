"""Windows of a text, against a text whose next token is known."""

import torch
from torch import nn

from qkv.problems import NextTokenWindows

TEXT = NextTokenWindows(torch.arange(100) % 5)


class After(nn.Module):
    """Sure of one token: what it was given, and `more`."""

    def __init__(self, more):
        super().__init__()
        self.more = more

    def forward(self, tokens):
        return nn.functional.one_hot((tokens + self.more) % 5, 5).float()


def test_what_follows_is_the_next_of_the_text():
    given, following = TEXT.windows([0, 3, 11])
    assert given.shape == following.shape == (3, 32)
    assert torch.equal(following, (given + 1) % 5)
    assert given[:, 0].tolist() == [0, 3 * 7919 % 68 % 5, 11 * 7919 % 68 % 5]


def test_accuracy_of_one_that_knows_and_one_that_does_not():
    assert TEXT.accuracy(After(1)) == 1.0
    assert TEXT.accuracy(After(2)) == 0.0


def test_the_best_constant_of_a_text_that_says_one_thing():
    assert NextTokenWindows(torch.full((50,), 7)).constant_accuracy() == 1.0
    assert 0.2 <= TEXT.constant_accuracy() < 0.22


def test_the_task_counts_and_sums_over_all_tokens():
    task = TEXT.objective(After(1), batch_size=3)
    batch = task.collate(task.order(2))
    assert task.order(2) == [6, 7, 8]
    assert task.count(batch) == 96
    lost = torch.log(torch.tensor(1 + 4 / torch.e))  # logits of 1 for the right one of five, 0 for the others
    torch.testing.assert_close(task.loss(task.model, batch), 96 * lost, rtol=1e-5, atol=0)
