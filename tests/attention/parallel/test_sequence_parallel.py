"""Every kind, split over processes, against one process: outputs, gradients, final states and exchanged bytes."""

import pytest
import torch
import torch.distributed as dist

from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequenceGroup
from qkv.attention.parallel.part import start_state
from qkv.attention.parallel.sequence_parallel import SequenceParallel
from tests.attention.parallel.cases import CALLS, build, make, part_lengths
from tests.attention.parallel.processes import launch


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


def work():
    group = SequenceGroup()
    return {call.name: differences_of(call, group) for call in CALLS}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("processes", [2, 4])
def test_parts_equal_one_process(processes, tmp_path):
    results = launch(work, processes, tmp_path)
    assert {len(result) for result in results} == {len({call.name for call in CALLS})}
    worst = {
        f"{name}: {what} at rank {rank}": value
        for rank, result in enumerate(results)
        for name, found in result.items()
        for what, value in found.items()
    }
    assert len(worst) > 300 * processes
    assert {name: value for name, value in worst.items() if not value < 1e-12} == {}
