"""Every kind, split over processes, against one process: outputs, gradients, final states and exchanged bytes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist

from benchmarks.sequence_parallel import launch, received_bytes
from qkv.attention import parse
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequenceGroup
from qkv.attention.parallel.part import start_state
from qkv.attention.parallel.sequence_parallel import SequenceParallel
from qkv.cost import Shape, count_multiplications
from tests.attention.parallel.cases import CALLS, KEY_DIM, VALUE_DIM, build, make, part_lengths


def difference(found, wanted):
    """Return the largest difference, relative to the largest value."""
    if not found.numel():
        return 0.0
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))


def summed(x):
    """Return the sum over processes."""
    x = x.clone()
    dist.all_reduce(x)
    return x


def differences_of(call, group):
    """Return name -> largest difference between this part and one process, for one call."""
    attention, inputs = build(call), make(call)
    lengths = part_lengths(call.time, group.parts)
    start = sum(lengths[: group.rank])
    places = slice(start, start + lengths[group.rank])
    weight = torch.linspace(-1, 1, inputs.q[..., 0].numel() * inputs.v.shape[3]).double()
    weight = weight.view(*inputs.q.shape[:3], inputs.v.shape[3])

    whole = inputs.part(0, call.time, call.causal)
    out = attention(whole.q, whole.k, whole.v, causal=call.causal, **whole.modifiers)
    wanted = torch.autograd.grad((out * weight).sum(), [*whole.leaves.values(), *attention.parameters()])

    own = inputs.part(start, places.stop, call.causal)
    parallel = SequenceParallel(attention, group)
    found = parallel(own.q, own.k, own.v, causal=call.causal, **own.modifiers)
    loss = (found * weight[:, :, places]).sum()
    gradients = torch.autograd.grad(loss, [*own.leaves.values(), *attention.parameters()])

    result = {"output": difference(found, out[:, :, places])}
    names = [*own.leaves, *(name for name, _ in attention.named_parameters())]
    for name, mine, all_of_it in zip(names, gradients, wanted, strict=True):
        if name in own.axes or name in ("q", "k", "v"):
            axis = own.axes.get(name, 2)
            expected = all_of_it.narrow(axis, start, lengths[group.rank])
            expected = expected[..., : mine.shape[-1]] if name == "bias" else expected
            result[f"gradient of {name}"] = difference(mine, expected)
        else:  # shared by all tokens
            result[f"gradient of {name}"] = difference(summed(mine), all_of_it)
    if call.causal:
        result["state"] = state_difference(attention, parallel, inputs, own)
    return result


def state_difference(attention, parallel, inputs, own):
    """Return the difference between the state after this part and that of one process after the same tokens."""
    part = parallel.group.locate(own.q.shape[2], own.q.device)
    bias = own.modifiers.get("bias")
    before = inputs.part(0, part.end, True)
    first = start_state(attention, own.q, own.k, own.v, Modifiers(True, **own.modifiers))
    given = {**before.modifiers, **({} if bias is None else {"bias": before.modifiers["bias"]})}
    with torch.no_grad():
        _, wanted = attention.step(before.q, before.k, before.v, first, **given)
        _, found = parallel.step(own.q, own.k, own.v, first, **own.modifiers)
    assert found.tensors().keys() == wanted.tensors().keys()
    return max(difference(x, wanted.tensors()[name]) for name, x in found.tensors().items())


def traffic_of(kind, causal, time, group):
    """Return the bytes that this process received in forward and backward, its products, and what formulas say."""
    attention, length = parse(kind, key_dim=KEY_DIM), time // group.parts
    draw = partial(torch.randn, requires_grad=True)
    q, k, v = draw(3, 4, length, KEY_DIM), draw(3, 2, length, KEY_DIM), draw(3, 2, length, VALUE_DIM)
    parallel = SequenceParallel(attention, group)
    shape = Shape(3, 4, length, length, KEY_DIM, VALUE_DIM, 2, causal=causal)
    with received_bytes() as counts:
        parallel(q, k, v, causal=causal).sum().backward()
    header, forward, backward = counts
    formula = parallel.exchanged_bytes(shape)
    senders = group.parts - 1 - group.rank if causal else group.parts - 1
    with torch.no_grad(), count_multiplications(strict=False) as counted:  # it does not know collectives
        parallel(q, k, v, causal=causal)
    seen = replace(shape, keys=length * (group.rank + 1 if causal else group.parts))
    return {
        "forward": [header + forward, formula],
        "backward": [backward, senders * (formula - header) // (group.parts - 1)],
        "multiplications": [counted.total, sum(parallel.cost(seen).executed.values())],
    }


TRAFFIC = [
    *((kind, True) for kind in ("softmax", "softmax(window=8)", "additive", "linear", "elu", "taylor", "delta")),
    *((kind, False) for kind in ("softmax", "additive", "linear", "taylor")),
]


def work(calls):
    group = SequenceGroup()
    traffic = {
        f"{kind}, {'causal' if causal else 'bidirectional'}, {time}": traffic_of(kind, causal, time, group)
        for kind, causal in TRAFFIC
        for time in (64, 1024)
    }
    return {"traffic": traffic, "calls": {call.name: differences_of(call, group) for call in calls}}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("processes", "calls"), [(2, CALLS[::2]), (4, CALLS)])
def test_parts_equal_one_process(processes, calls, tmp_path):
    results = launch(work, processes, tmp_path, calls)
    worst = {
        f"{name}: {what} at rank {rank}": value
        for rank, result in enumerate(results)
        for name, found in result["calls"].items()
        for what, value in found.items()
    }
    assert len(worst) > 4 * len(calls) * processes
    assert {name: value for name, value in worst.items() if not value < 1e-12} == {}
    traffic = {
        f"{name}, rank {rank}: {what}": pair
        for rank, result in enumerate(results)
        for name, found in result["traffic"].items()
        for what, pair in found.items()
    }
    assert len(traffic) == 3 * 2 * len(TRAFFIC) * processes
    assert {name: pair for name, pair in traffic.items() if pair[0] != pair[1]} == {}
    for kind, features in (("linear", KEY_DIM * VALUE_DIM), ("delta", KEY_DIM * (KEY_DIM + VALUE_DIM))):
        counted = {traffic[f"{kind}, causal, {time}, rank 1: forward"][0] for time in (64, 1024)}
        # 3 rows of 2 key heads in float32; 16 bytes for the length of a part
        assert counted == {(processes - 1) * (3 * 2 * features * 4 + 16)}
