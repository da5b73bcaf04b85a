"""Hungarian matching of a whole batch: the fast form of `match_one_to_one`.

Shortest augmenting paths, as in the definition. All pictures advance together, and the loops have fixed bounds, so
nothing is read back from the device: the matching can be a part of a CUDA graph.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

FREE = -1


class _Paths(NamedTuple):
    """Shortest paths from one object of each picture to all queries."""

    length: Tensor
    """(batch, queries), in reduced costs."""
    reached_from: Tensor
    """(batch, queries): the object before each query."""
    done: Tensor
    """(batch, queries): whether the length is final."""
    end: Tensor
    """(batch,): the free query at the end of the shortest path."""


def match_one_to_one_batched(
    cost: Float[Tensor, "batch queries objects"], is_object: Bool[Tensor, "batch objects"]
) -> Int64[Tensor, "batch objects"]:
    """Return for each object the query of the assignment with the least total cost; -1 where there is no object.

    Needs at least as many queries as objects, padding included. Runs objects (objects + 1) / 2 rounds for any batch.
    A cost that is not finite gives a valid but arbitrary assignment.
    """
    batch, queries, objects = cost.shape
    if queries < objects:
        raise ValueError(f"queries={queries} must be at least objects={objects}")
    costs = cost.detach().transpose(1, 2).double()  # [batch, objects, queries]
    object_price, query_price = costs.new_zeros(batch, objects), costs.new_zeros(batch, queries)
    owner = torch.full((batch, queries), FREE, device=cost.device)
    taken = torch.full((batch, objects), FREE, device=cost.device)
    for start in range(objects):
        active = is_object[:, start]
        paths = _shortest_paths(costs - query_price[:, None] - object_price[..., None], owner, active, start)
        shortest = paths.length.gather(1, paths.end[:, None])
        slack = (shortest - paths.length).masked_fill(~paths.done, 0)
        query_price = query_price - slack
        raised = slack.gather(1, taken.clamp_min(0)).masked_fill(taken == FREE, 0)
        raised[:, start] = shortest[:, 0].masked_fill(~active, 0)
        object_price = object_price + raised
        _move_along(paths, owner, taken, active, start)
    return taken


def _shortest_paths(reduced: Tensor, owner: Tensor, active: Tensor, start: int) -> _Paths:
    """Extend the cheapest path from object `start` until it meets a free query; at most `start` queries are owned."""
    batch, _, queries = reduced.shape
    column = torch.arange(queries, device=reduced.device)
    length = reduced.new_full((batch, queries), torch.inf)
    reached_from = torch.full((batch, queries), start, device=reduced.device)
    done = torch.zeros((batch, queries), dtype=torch.bool, device=reduced.device)
    current = torch.full((batch, 1), start, device=reduced.device)
    end = torch.zeros_like(current)
    so_far = reduced.new_zeros(batch, 1)
    searching = active[:, None]
    for _ in range(start + 1):
        through = so_far + reduced.gather(1, current[..., None].expand(-1, -1, queries))[:, 0]
        better = searching & ~done & (through < length)
        length = torch.where(better, through, length)
        reached_from = torch.where(better, current, reached_from)
        nearest = length.masked_fill(done, torch.inf).argmin(1, keepdim=True)
        end = torch.where(searching, nearest, end)
        done = done | (searching & (column == nearest))
        so_far = length.gather(1, end)
        next_owner = owner.gather(1, end)
        searching = searching & (next_owner != FREE)
        current = torch.where(searching, next_owner, current)
    return _Paths(length, reached_from, done, end[:, 0])


def _move_along(paths: _Paths, owner: Tensor, taken: Tensor, active: Tensor, start: int) -> None:
    """Give each object on the path the next query of it, from the end back to object `start`."""
    query, moving = paths.end[:, None], active[:, None]
    for _ in range(start + 1):
        giver = paths.reached_from.gather(1, query)
        owner.scatter_(1, query, torch.where(moving, giver, owner.gather(1, query)))
        before = taken.gather(1, giver)
        taken.scatter_(1, giver, torch.where(moving, query, before))
        moving = moving & (giver != start)
        query = torch.where(moving, before.clamp_min(0), query)
