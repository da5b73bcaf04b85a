"""Every address that the kernels read or write is inside a tensor of the launch, with the block sizes of a GPU."""

from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl

from qkv.attention import Elu, Linear, Taylor
from qkv.attention.feature_map import FeatureMap
from qkv.attention.triton import delta_launch
from qkv.attention.triton.delta_decode import delta_step
from qkv.attention.triton.delta_op import delta_attention
from qkv.attention.triton.launch_cache import CachedKernel, Constants
from qkv.models.detectors.detr import DETRConfig, TokenEncoder
from tests.attention.triton.address_check import AddressError, checked_addresses

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs on the CPU"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"),
]
FORWARD_AND_BACKWARD = ["chunk_state", "output", "grad_qk", "chunk_state", "grad_qk", "output"]
"""Kernels of a sequence of several segments, without the scans of their states."""


def heads_of(x, heads, dim):
    """(batch, heads, time, dim) as a view of (batch, time, heads * dim), like the projections of `MultiHead`."""
    return torch.zeros(*x, heads * dim, dtype=torch.bfloat16).unflatten(2, (heads, dim)).transpose(1, 2)


@pytest.mark.parametrize(
    ("mechanism", "dims", "heads", "length"),
    [
        (Taylor(chunk=128, backend="triton"), (32, 32), (1, 1), 200),
        (Taylor(chunk=128, backend="triton"), (20, 7), (2, 1), 130),
        (Taylor(chunk=64, backend="triton"), (16, 64), (2, 1), 100),
        (Linear(chunk=64, backend="triton"), (32, 131), (2, 1), 100),
        (Elu(chunk=64, backend="triton"), (100, 32), (2, 1), 100),
    ],
    ids=str,
)
@pytest.mark.parametrize(("causal", "masked"), [(True, False), (False, True), (False, False)])
def test_kernels_stay_inside_their_tensors(mechanism, dims, heads, length, causal, masked):
    """In bfloat16, whose blocks are those that were measured on a GPU."""
    q = heads_of((1, length), heads[0], dims[0]).requires_grad_()
    k, v = (heads_of((1, length), heads[1], dim).requires_grad_() for dim in dims)
    mask = torch.arange(length)[None] % 7 != 3 if masked else None
    with checked_addresses() as launches:
        mechanism(q, k, v, causal=causal, mask=mask).backward(heads_of((1, length), heads[0], dims[1]))
    assert [launch.kernel for launch in launches if launch.kernel != "scan"] == FORWARD_AND_BACKWARD
    assert all(launch.accesses for launch in launches)


@pytest.mark.parametrize("extent", [128, 96])
def test_an_encoder_under_autocast_stays_inside_its_tensors(extent):
    """Heads of 32 of the encoder of DETR, with the strides and types of its projections; 96 pixels need a mask."""
    encoder = TokenEncoder(DETRConfig(attention="taylor", dim=32, heads=1, hidden_dim=32, layers=1), 8, 8)
    for module in encoder.modules():
        if isinstance(module, FeatureMap):
            module.backend, module.chunk = "triton", 128
    with checked_addresses() as launches, torch.autocast("cpu", torch.bfloat16):
        encoder(torch.zeros(1, 8, 16, 16), torch.tensor([[128, extent]])).values.sum().backward()
    assert [launch.kernel for launch in launches if launch.kernel != "scan"] == FORWARD_AND_BACKWARD


class DeltaSizes(NamedTuple):
    tokens: int
    heads: int
    key_heads: int
    group: int
    key_dim: int
    value_dim: int
    starts: bool = False


DELTA = [
    DeltaSizes(1, 2, 2, 1, 16, 16),
    DeltaSizes(67, 2, 1, 1, 17, 20, starts=True),
    *(
        pytest.param(size, marks=pytest.mark.slow)
        for size in (
            DeltaSizes(64, 1, 1, 2, 128, 256, starts=True),
            DeltaSizes(70, 2, 2, 2, 96, 131),
            DeltaSizes(129, 1, 1, 1, 128, 7),
        )
    ),
]


def run_delta(size, dtype):
    """Outputs, the last state, all gradients, and a step that continues; inputs as views of (batch, time, dim)."""
    q = heads_of((1, size.tokens), size.heads * size.group, size.key_dim).to(dtype) + 1
    k, v = (heads_of((1, size.tokens), size.key_heads, dim).to(dtype) + 1 for dim in (size.key_dim, size.value_dim))
    decay, beta = torch.rand(2, 1, size.heads, size.tokens).unbind()
    starts = torch.arange(size.tokens)[None] % 50 == 20 if size.starts else None
    first = torch.ones(1, size.heads, size.key_dim, size.value_dim)
    leaves = [x.requires_grad_() for x in (q, k, v, decay, beta, first)]
    out, last = delta_attention(*leaves[:5], starts, first, size.heads, 0.25, True)[:2]
    gradients = torch.autograd.grad([out.float().sum() + last.sum()], leaves)
    token = [x.detach()[:, :, :1] for x in leaves[:5]]
    stepped = delta_step(*token, None if starts is None else starts[:, :1], last.detach(), 0.25)
    return out, last, *gradients, stepped


DELTA_PASSES = ["delta_pairs", "delta_inverse", "delta_walk", "delta_walk_back", "delta_grad", "delta_step"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", DELTA, ids=str)
def test_delta_stays_inside_its_tensors(size, dtype):
    with checked_addresses() as launches:
        run_delta(size, dtype)
    assert [launch.kernel for launch in launches] == DELTA_PASSES
    assert all(launch.accesses for launch in launches)


@pytest.mark.parametrize("size", DELTA, ids=str)
def test_delta_reads_nothing_that_it_did_not_write(size, monkeypatch):
    """What the passes leave to each other and return is written before it is read: new memory is NaN here."""
    empty, empty_like, allocated = torch.Tensor.new_empty, torch.empty_like, []

    def spoiled(x):
        allocated.append(x.numel())
        return x.fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **named: spoiled(empty(*args, **named)))
    monkeypatch.setattr(delta_launch.torch, "empty_like", lambda *args, **named: spoiled(empty_like(*args, **named)))
    found = run_delta(size, torch.float32)
    assert sum(allocated) > 4 * size.tokens
    assert all(x.isfinite().all() for x in found)


class Copied(NamedTuple):
    source: object
    target: object


@triton.jit
def copy_kernel(pointers, length, BLOCK: tl.constexpr):  # noqa: N803
    """Copy `length` numbers."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(pointers.source + offsets, mask=offsets < length, other=0.0)
    tl.store(pointers.target + offsets, x, mask=offsets < length)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((7, 8), "load .*, 0 bytes after source .28 bytes"), ((8, 6), "store .*, 0 bytes after target .24 bytes")],
)
def test_an_address_outside_is_found(sizes, words):
    copy = CachedKernel(copy_kernel, Copied, int)
    source, target = (torch.ones(64)[:size] for size in sizes)  # inside of an allocation, but not of the tensor
    with checked_addresses(), pytest.raises(Exception, match=words) as raised:
        copy((1, 1, 1), (source, target), (8,), Constants({"BLOCK": 16}, {}))
    assert isinstance(raised.value.__cause__, AddressError)


def test_addresses_inside_are_counted():
    copy = CachedKernel(copy_kernel, Copied, int)
    source, target = torch.randn(8), torch.zeros(8)
    with checked_addresses() as launches:
        copy((1, 1, 1), (source, target), (8,), Constants({"BLOCK": 16}, {}))
    assert torch.equal(source, target)
    assert launches[0].accesses == 16
