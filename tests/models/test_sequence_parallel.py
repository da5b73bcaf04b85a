"""Decoders and encoders, split over processes, against one process: logits and gradients of parameters."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.sequence_parallel import launch
from qkv.attention import SequenceGroup
from qkv.layers import pack_documents, parallelize_sequence, whole_sequences
from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from tests.attention.parallel.cases import part_lengths

TOKENS, TIME, BATCH = 11, 23, 2
SIZES = {"dim": 12, "heads": 2, "hidden_dim": 7, "layers": 2, "max_length": 31, "dropout": 0.0}

DECODERS = {
    **{f"softmax {scheme}": {"positions": scheme} for scheme in ("none", "learned", "sinusoidal", "rope", "alibi")},
    **{f"softmax {scheme}": {"positions": scheme} for scheme in ("t5", "shaw")},
    "window with bias": {"attention": "softmax(window=4)", "positions": "t5"},
    "additive": {"attention": "additive", "positions": "learned"},
    "linear alibi": {"attention": "linear", "positions": "alibi"},
    "taylor rope": {"attention": "taylor", "positions": "rope"},
    "convolution": {"attention": "elu", "positions": "sinusoidal", "convolution": 3},
    "wide convolution": {"attention": "linear", "positions": "none", "convolution": 9},
    "gates": {"attention": "delta+forget+write+output+convolution", "positions": "rope"},
    "channel gates": {"attention": "linear+channel", "positions": "none"},
    "gated softmax": {"attention": "softmax+forget", "positions": "rope"},
    "pattern": {"attention": "delta+forget,softmax", "positions": "none"},
}
ENCODERS = {
    **{f"softmax {scheme}": {"positions": scheme} for scheme in ("learned", "sinusoidal", "rope", "alibi")},
    **{f"softmax {scheme}": {"positions": scheme, "norm": "before"} for scheme in ("t5", "shaw")},
    "taylor": {"attention": "taylor", "positions": "learned"},
    "linear rope": {"attention": "linear", "positions": "rope"},
    "elu": {"attention": "elu", "positions": "sinusoidal"},
    "additive": {"attention": "additive", "positions": "learned"},
}


def decoder(**options):
    torch.manual_seed(5)
    return Decoder(DecoderConfig(**{**SIZES, **options}), TOKENS).double()


def encoder(**options):
    torch.manual_seed(5)
    return Encoder(EncoderConfig(**{**SIZES, **options}), TOKENS).double()


def rows(name):
    """Return tokens, a padding mask and where documents start, of a case."""
    torch.manual_seed(sum(map(ord, name)))
    tokens, mask = torch.randint(0, TOKENS, (BATCH, TIME)), torch.rand(BATCH, TIME) < 0.8
    mask[0, :9] = False  # the first row begins in the second part
    return tokens, mask, torch.rand(BATCH, TIME) < 0.12


def gradients(model, outputs, weight, share):
    """Return the gradients of the parameters by name; zeros for those that are not used.

    Every process has the pooled vector of an encoder, and takes its share of a loss on it.
    """
    logits, pooled = outputs if isinstance(outputs, tuple) else (outputs, outputs.new_zeros(1))
    named = dict(model.named_parameters())
    loss = (logits * weight).sum() + share * pooled.sum()
    found = torch.autograd.grad(loss, named.values(), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def first(outputs):
    """Return the logits."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def relative(found, wanted):
    if not found.numel():
        return 0.0
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))


def compare(model, group, whole, part, mask):
    """Return the largest differences of the outputs, and of the gradients summed over processes.

    Values at padding are never used: an encoder may leave them out of its feed-forward layers.
    """
    lengths = part_lengths(TIME, group.parts)
    start = sum(lengths[: group.rank])
    places = slice(start, start + lengths[group.rank])
    seen = torch.ones(BATCH, TIME, 1) if mask is None else mask[..., None].double()
    weight = torch.linspace(-1, 1, BATCH * TIME * TOKENS, dtype=torch.float64).view(BATCH, TIME, TOKENS) * seen
    wanted = gradients(model, whole(), weight, 1.0)
    with torch.no_grad():
        expected = first(whole())
    parallelize_sequence(model, group)
    outputs = part()
    found = gradients(model, outputs, weight[:, places], lengths[group.rank] / TIME)
    for x in found.values():
        dist.all_reduce(x)
    with whole_sequences(model), torch.no_grad():
        assert torch.equal(first(whole()), expected)
    return {
        "logits": relative(first(outputs) * seen[:, places], (expected * seen)[:, places]),
        "gradients": max(relative(x, wanted[name]) for name, x in found.items()),
    }


def work():
    group, found = SequenceGroup(), {}
    lengths = part_lengths(TIME, group.parts)
    start = sum(lengths[: group.rank])
    end = start + lengths[group.rank]
    for name, options in DECODERS.items():
        tokens, mask, starts = rows(name)
        packing = pack_documents(starts)
        assert packing is not None
        own = packing.part(start, end)
        for given, whole, part in (
            ("plain", {}, {}),
            ("mask", {"mask": mask}, {"mask": mask[:, start:end]}),
            ("packed", {"packing": packing}, {"packing": own}),
        ):
            model = decoder(**options)
            found[f"decoder {name} {given}"] = compare(
                model,
                group,
                lambda m=model, t=tokens, w=whole: m(t, **w),
                lambda m=model, t=tokens[:, start:end], p=part: m(t, **p),
                whole.get("mask"),
            )
    for name, options in ENCODERS.items():
        tokens, mask, _ = rows(name)
        for given, whole, part in (("plain", {}, {}), ("mask", {"mask": mask}, {"mask": mask[:, start:end]})):
            model = encoder(**options)
            found[f"encoder {name} {given}"] = compare(
                model,
                group,
                lambda m=model, t=tokens, w=whole: m(t, **w),
                lambda m=model, t=tokens[:, start:end], p=part: m(t, **p),
                whole.get("mask"),
            )
            with whole_sequences(model), torch.no_grad():
                pooled = model(tokens, **whole)[1]
            found[f"encoder {name} {given}"]["pooled"] = relative(model(tokens[:, start:end], **part)[1], pooled)
    found["mask of one process"] = disagreement(group, tokens[:, start:end])
    return found


def disagreement(group, tokens):
    """Return the error of a mask that only the first process gives."""
    model = decoder()
    parallelize_sequence(model, group)
    with pytest.raises(ValueError, match="mask must be given by all processes") as caught:
        model(tokens, mask=torch.ones_like(tokens, dtype=torch.bool) if group.rank == 0 else None)
    return {"error": str(caught.value)}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("processes", [2, 4])
def test_parts_equal_one_process(processes, tmp_path):
    results = launch(work, processes, tmp_path)
    errors = {result.pop("mask of one process")["error"] for result in results}
    assert errors == {"mask must be given by all processes of a sequence or by none, got it at [0]"}
    assert [len(result) for result in results] == [3 * len(DECODERS) + 2 * len(ENCODERS)] * processes
    worst = {
        f"{name}: {what} at rank {rank}": value
        for rank, result in enumerate(results)
        for name, found in result.items()
        for what, value in found.items()
    }
    assert {name: value for name, value in worst.items() if not value < 1e-12} == {}
