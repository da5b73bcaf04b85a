import torch
from torch import nn

from qkv.problems import MarkovChain, fit
from qkv.train import Settings


class Truth(nn.Module):
    """The table itself, as a model."""

    def __init__(self, language):
        super().__init__()
        self.table = language.table()

    def forward(self, x):
        before = torch.cat((x[:, :1], x[:, :-1]), 1)
        return self.table[before, x].log()


def test_rows_of_the_table_are_distributions():
    table = MarkovChain(tokens=5).table()
    assert table.shape == (5, 5, 5)
    assert torch.allclose(table.sum(-1), torch.ones(5, 5, dtype=torch.float64))
    assert not torch.equal(table, MarkovChain(tokens=5, seed=1).table())


def test_frequencies_are_those_of_the_table():
    language = MarkovChain(tokens=3)
    x = language.sample(400, 100, "train")
    counts = torch.zeros(3, 3, 3).index_put_(
        (x[:, :-2].flatten(), x[:, 1:-1].flatten(), x[:, 2:].flatten()), torch.ones(400 * 98), accumulate=True
    )
    seen = counts.sum(-1, keepdim=True)
    assert seen.min() > 30
    assert ((counts / seen - language.table()).abs() < 4 * (0.25 / seen) ** 0.5).all()


def test_the_truth_has_no_excess_and_ignorance_has_its_own():
    language = MarkovChain(tokens=7)
    assert abs(language.excess_loss(Truth(language), 40)) < 1e-12

    class Uniform(nn.Module):
        def forward(self, x):
            return torch.zeros(*x.shape, 7)

    x = language.sample(64, 40, "test")
    entropy = -language.table()[x[:, :-2], x[:, 1:-1]].log().gather(-1, x[:, 2:, None])[:, -16:].mean()
    expected = torch.tensor(7.0).log() - entropy
    assert abs(language.excess_loss(Uniform(), 40) - expected) < 1e-6


def test_fit_trains_by_the_loop_and_leaves_the_best_weights():
    language, model = MarkovChain(tokens=4), nn.Sequential(nn.Embedding(4, 4))
    settings = Settings(steps=60, batch_size=8, learning_rate=0.1, warmup=1, validate_every=20)
    before = language.excess_loss(model, 32)
    losses = fit(language.objective(model, settings, rows=64), settings)
    assert len(losses) == 60
    assert language.excess_loss(model, 32) < before
    assert not model.training
