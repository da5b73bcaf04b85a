"""The place of a part among the others."""

from copy import deepcopy

import torch

from qkv.attention.parallel.group import SequencePart
from tests.attention.parallel.one_process import one_process


class Place:
    """A group of which only the rank is asked for."""

    parts = 3

    def __init__(self, rank):
        self.rank = rank


def test_places_of_uneven_parts():
    part = SequencePart(Place(1), (5, 2, 4))
    assert (part.offset, part.length, part.end, part.total) == (5, 2, 7, 11)
    assert part.index(torch.device("cpu")).tolist() == [5, 6]


def test_a_part_of_one_process_has_no_neighbors():
    with one_process() as group:
        part, x = SequencePart(group, (5,)), torch.randn(2, 5, 3, requires_grad=True)
        wide = part.extend(x, 2, 1)
        assert torch.equal(wide[:, 2:-1], x)
        assert not wide[:, :2].any()
        assert not wide[:, -1:].any()
        (gradient,) = torch.autograd.grad(wide.sum(), x)
        assert torch.equal(gradient, torch.ones_like(x))
        mask = torch.tensor([[False, True, True, False, True]])
        assert part.positions(mask, x.device).tolist() == [[0, 0, 1, 1, 2]]
        assert group.locate(5, x.device) is None
        assert deepcopy(group) is group
