"""Batched Hungarian matching against the definition and scipy."""

import pytest
import torch

from qkv.models.regions import match_one_to_one, match_one_to_one_batched


def costs(kind, batch, queries, objects, seed):
    g = torch.Generator().manual_seed(seed)
    shape = (batch, queries, objects)
    if kind == "random":
        return torch.randn(shape, generator=g, dtype=torch.double)
    if kind == "ties":
        return torch.randint(-2, 3, shape, generator=g).double()
    if kind == "constant":
        return torch.ones(shape, dtype=torch.double)
    # every object prefers the same queries, in the same order: the longest paths
    return torch.arange(queries, dtype=torch.double)[:, None] * torch.arange(1, objects + 1).expand(shape)


@pytest.mark.parametrize("kind", ["random", "ties", "constant", "rivals"])
@pytest.mark.parametrize(("queries", "objects"), [(1, 1), (6, 6), (16, 6), (20, 0), (13, 12)])
def test_batched_assignment_has_the_least_cost(kind, queries, objects):
    optimize = pytest.importorskip("scipy.optimize")
    batch = 12
    cost = costs(kind, batch, queries, objects, seed=queries)
    present = torch.rand(batch, objects, generator=torch.Generator().manual_seed(1)) < 0.7
    present[0], present[1] = True, False
    found = match_one_to_one_batched(cost, present)
    assert found.shape == (batch, objects)
    assert (found[~present] == -1).all()
    for picture in range(batch):
        own = present[picture]
        part, mine = cost[picture][:, own], found[picture][own]
        assert len(set(mine.tolist())) == int(own.sum())
        total = part[mine, torch.arange(len(mine))].sum().item()
        rows, columns = optimize.linear_sum_assignment(part.numpy())
        assert total == pytest.approx(part.numpy()[rows, columns].sum(), abs=1e-12)
        law = part[match_one_to_one(part), torch.arange(len(mine))].sum().item()
        assert total == pytest.approx(law, abs=1e-12)


def test_batched_assignment_reads_nothing_back():
    """On the meta device a host read raises, so this shows that a CUDA graph can capture the matching."""
    cost = torch.empty(8, 20, 6, device="meta")
    found = match_one_to_one_batched(cost, torch.ones(8, 6, dtype=torch.bool, device="meta"))
    assert found.shape == (8, 6)


def test_costs_that_are_not_finite_give_valid_queries():
    cost = torch.full((2, 5, 3), float("nan"))
    cost[1] = torch.inf
    found = match_one_to_one_batched(cost, torch.ones(2, 3, dtype=torch.bool))
    assert ((found >= 0) & (found < 5)).all()


def test_bad_input_batched_assignment():
    with pytest.raises(ValueError, match="queries=2 must be at least objects=3"):
        match_one_to_one_batched(torch.zeros(1, 2, 3), torch.ones(1, 3, dtype=torch.bool))
