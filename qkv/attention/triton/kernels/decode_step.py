"""One new token on a GPU: the memory is updated where it lies and read in the same pass.

    sums_f *= fade;    sums_f += features_f(k) v';    out = sum_f features_f(q) sums_f / normalizer

The time does not depend on how many tokens came before. A program keeps some features of a key head, and serves every
query head of its group with the one update. A large memory is more than one program moves in good time: several
share it, and what each read is then added up, in order.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from qkv.attention.triton.kernels import taylor as taylor_triton
from qkv.attention.triton.kernels.common import inverted
from qkv.attention.triton.kernels.linear import positive
from qkv.attention.triton.launch import side_by_side, strides
from qkv.attention.triton.launch_cache import Constants, Relaunched
from qkv.attention.triton.plan import Plan, blocks_of, plan_of, power_of_two
from qkv.cost.aten import FORMULAS


@triton.jit
def _expanded(x, first, second, terms, features, scale, FEATURES: tl.constexpr, ELU: tl.constexpr, PAIRS: tl.constexpr):
    """Features of one token by plain loads: numbers `first` and `second` of it; -1 is none."""
    there = features < FEATURES
    one = tl.load(first + features, mask=there, other=-1)
    value = tl.load(x + one, mask=one >= 0, other=0.0).to(tl.float32)
    if PAIRS:
        two = tl.load(second + features, mask=there, other=-1)
        other = tl.load(x + two, mask=two >= 0, other=0.0).to(tl.float32)
        u = tl.load(terms + features, mask=there, other=0.0)
        v = tl.load(terms + FEATURES + features, mask=there, other=0.0)
        w = tl.load(terms + 2 * FEATURES + features, mask=there, other=0.0)
        value = (value * u + v) * (other + w)
    else:
        value *= scale
        if ELU:
            value = tl.where(there, positive(value), 0.0)
    return value


@triton.jit
def advance(
    q_pointer, k_pointer, v_pointer, first_pointer, second_pointer, q_terms_pointer, k_terms_pointer,
    seen_pointer, decay_pointer, sums_pointer, norms_pointer, out_pointer, read_pointer, read_norms_pointer,
    q_b, q_h, k_b, k_h, v_b, v_h, o_b, o_h, key_heads, scale,
    GROUP: tl.constexpr, GROUP_SIZE: tl.constexpr, FEATURES: tl.constexpr, TILE: tl.constexpr,
    PER: tl.constexpr, PARTS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    PAIRS: tl.constexpr, ELU: tl.constexpr, NORMALIZES: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """PER features of one key head of one sequence."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, key_head = row // key_heads, row % key_heads
    columns, members = tl.arange(0, VALUE_SIZE), tl.arange(0, GROUP_SIZE)
    kept = columns < VALUE_DIM
    present = kept
    if HIDING:
        present = kept & (tl.load(seen_pointer + batch) != 0)
    fade = 1.0
    if DECAYS:
        fade = tl.exp(-tl.load(decay_pointer + key_head))
    value = tl.load(v_pointer + batch * v_b + key_head * v_h + columns, mask=present, other=0.0).to(tl.float32)
    out = tl.zeros([GROUP_SIZE, VALUE_SIZE], tl.float32)
    norm = tl.zeros([GROUP_SIZE], tl.float32)
    for start in range(part * PER, tl.minimum(part * PER + PER, FEATURES), TILE):
        features = start + tl.arange(0, TILE)
        there = features < FEATURES
        written = _expanded(k_pointer + batch * k_b + key_head * k_h, first_pointer, second_pointer, k_terms_pointer,
                            features, 1.0, FEATURES, ELU, PAIRS)  # fmt: skip
        if HIDING:  # not by a product: a hidden key may hold NaN
            written = tl.where(tl.load(seen_pointer + batch) != 0, written, 0.0)
        places = (row * FEATURES + features)[:, None] * VALUE_DIM + columns[None, :]
        inside = there[:, None] & kept[None, :]
        sums = tl.load(sums_pointer + places, mask=inside, other=0.0) * fade + written[:, None] * value[None, :]
        tl.store(sums_pointer + places, sums, mask=inside)
        norms = tl.zeros([TILE], tl.float32)
        if NORMALIZES:
            norms = tl.load(norms_pointer + row * FEATURES + features, mask=there, other=0.0) * fade + written
            tl.store(norms_pointer + row * FEATURES + features, norms, mask=there)
        for member in tl.static_range(GROUP):
            head = key_head * GROUP + member
            asked = _expanded(q_pointer + batch * q_b + head * q_h, first_pointer, second_pointer, q_terms_pointer,
                              features, scale, FEATURES, ELU, PAIRS)  # fmt: skip
            mine = (members == member).to(tl.float32)
            out += mine[:, None] * tl.sum(asked[:, None] * sums, 0)[None, :]
            norm += mine * tl.sum(asked * norms, 0)
    if PARTS == 1:
        _answer(out, norm, out_pointer + batch * o_b + key_head * GROUP * o_h, o_h, GROUP, VALUE_DIM, NORMALIZES)
    else:
        place = (row * PARTS + part) * GROUP_SIZE + members
        tl.store(read_pointer + place[:, None] * VALUE_SIZE + columns[None, :], out)
        tl.store(read_norms_pointer + place, norm)


@triton.jit
def gather(
    read_pointer, read_norms_pointer, out_pointer, o_b, o_h, key_heads,
    GROUP: tl.constexpr, GROUP_SIZE: tl.constexpr, PARTS: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, NORMALIZES: tl.constexpr,
):  # fmt: skip
    """What the parts of a key head's memory read, added up."""
    row = tl.program_id(0).to(tl.int64)
    members, columns = tl.arange(0, GROUP_SIZE), tl.arange(0, VALUE_SIZE)
    out = tl.zeros([GROUP_SIZE, VALUE_SIZE], tl.float32)
    norm = tl.zeros([GROUP_SIZE], tl.float32)
    for part in range(PARTS):
        place = (row * PARTS + part) * GROUP_SIZE + members
        out += tl.load(read_pointer + place[:, None] * VALUE_SIZE + columns[None, :])
        norm += tl.load(read_norms_pointer + place)
    start = out_pointer + row // key_heads * o_b + row % key_heads * GROUP * o_h
    _answer(out, norm, start, o_h, GROUP, VALUE_DIM, NORMALIZES)


@triton.jit
def _answer(
    out, norm, start, stride_h, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, NORMALIZES: tl.constexpr
):  # fmt: skip
    """Divide, and keep the outputs of the query heads from `start` on."""
    members, columns = tl.arange(0, out.shape[0]), tl.arange(0, out.shape[1])
    if NORMALIZES:
        out *= inverted(norm, members < GROUP)[:, None]
    there = (members < GROUP)[:, None] & (columns < VALUE_DIM)[None, :]
    tl.store(start + members[:, None] * stride_h + columns[None, :], out.to(start.dtype.element_ty), mask=there)


ADVANCE, GATHER = Relaunched(advance), Relaunched(gather)
SHARE = 16384
"""Numbers of a memory that one program takes: fixed, so that any batch on any chip gives the same bits."""


@dataclass(frozen=True)
class Shares:
    """How a memory is shared between programs, and what those are compiled with."""

    parts: int
    advance: Constants
    gather: Constants
    room: tuple[int, int]
    """Of what one part reads: query heads and numbers, in whole tiles."""


@lru_cache(maxsize=64)
def _shares(plan: Plan, group: int, hiding: bool, decays: bool) -> Shares:
    value_size = power_of_two(plan.value_dim)
    per = max(16, SHARE // value_size)
    parts = blocks_of(plan.features, per)
    both = {
        "GROUP": group, "GROUP_SIZE": power_of_two(group), "PARTS": parts, "VALUE_DIM": plan.value_dim,
        "VALUE_SIZE": value_size, "NORMALIZES": plan.parts.normalizes,
    }  # fmt: skip
    alone = {
        "FEATURES": plan.features, "TILE": min(per, max(16, 4096 // value_size)), "PER": per, "PAIRS": plan.expands,
        "ELU": plan.kind == "elu", "HIDING": hiding, "DECAYS": decays,
    }  # fmt: skip
    options: dict[str, int | None] = {"num_warps": 2}
    return Shares(
        parts, Constants({**both, **alone}, options), Constants(both, options), (power_of_two(group), value_size)
    )


@lru_cache(maxsize=64)
def _indices(plan: Plan, scale: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Which two numbers make each feature, and u, v, w of (u x_i + v) (x_j + w); of one number, which one."""
    if not plan.expands:
        places = torch.arange(plan.key_dim, device=device, dtype=torch.int32)
        return places, places, places
    chosen = torch.full((2, plan.features), -1, dtype=torch.int32)
    terms = torch.zeros(3, plan.features, dtype=torch.float64)
    for one, two, place in taylor_triton.pairs(plan.key_dim):
        absent = [index == plan.key_dim for index in (one, two)]
        for side, index in enumerate((one, two)):
            chosen[side, place] = -1 if absent[side] else index
        u = scale**2 * (0.5**0.5 if one == two < plan.key_dim else 1.0)
        terms[:, place] = torch.tensor([u, u * absent[0] / scale, absent[1] / scale])
    first, second = chosen.to(device)
    return first, second, terms.to(device, torch.float32)


@torch.library.custom_op("qkv::feature_map_step", mutates_args=("sums", "norms"))
def feature_map_step(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None, sums: Tensor, norms: Tensor | None,
    kind: str, scale: float,
) -> Tensor:  # fmt: skip
    """The outputs of one new token a sequence; `sums` and `norms` then hold it too."""
    if not (sums.is_contiguous() and (norms is None or norms.is_contiguous())):
        raise ValueError("sums and norms are written where they lie, and must be contiguous")
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    mask = None if mask is None else mask.contiguous()
    batch, heads, _, key_dim = q.shape
    key_heads, value_dim = v.shape[1], v.shape[3]
    plan = plan_of(kind, True, scale, 16, 1, key_heads, key_dim, value_dim, q.dtype, True)
    out = q.new_empty(batch, heads, 1, value_dim)
    first, second, q_terms = _indices(plan, scale, q.device)
    k_terms = _indices(plan, 1.0, q.device)[2]
    shares, rows = _shares(plan, heads // key_heads, mask is not None, decay is not None), batch * key_heads
    read = read_norms = None
    if shares.parts > 1:
        read = q.new_empty(rows, shares.parts, *shares.room, dtype=torch.float32)
        read_norms = q.new_empty(rows, shares.parts, shares.room[0], dtype=torch.float32)
    if out.numel():
        with torch.cuda.device_of(q):
            ADVANCE(
                (rows, shares.parts, 1),
                (q, k, v, first, second, q_terms, k_terms, mask, decay, sums, norms, out, read, read_norms),
                (*strides(q)[:2], *strides(k)[:2], *strides(v)[:2], *strides(out)[:2], key_heads, scale),
                shares.advance,
            )
            if shares.parts > 1:
                GATHER((rows, 1, 1), (read, read_norms, out), (*strides(out)[:2], key_heads), shares.gather)
    return out


@feature_map_step.register_fake
def _(q, k, v, mask, decay, sums, norms, kind, scale):
    return q.new_empty(*q.shape[:3], v.shape[3])


def _step_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    """Each number of the memory is updated once, and read for every query of its group."""
    q, sums = arguments[0], arguments[5]
    return sums.numel() * (1 + q.shape[1] // sums.shape[1])


FORMULAS["qkv.feature_map_step"] = _step_multiplications
