"""Buffers and launches of the passes.

    forward    chunk_state(k, v) -> scan -> output(q; k, v)
    backward   grad_qk(q; k, v) -> chunk_state(q, dout) -> scan back -> grad_qk(k; q, dout), output(k; q, dout)

A sequence of one segment needs no state: its tokens are attended to one by one. Few rows are divided into splits that
run in parallel; the state before a split comes from the scan, and is added where it is read. Without causal order every
query reads the state of all tokens.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from qkv.attention.triton.constants import Flags
from qkv.attention.triton.gate import Crossing, GateSums
from qkv.attention.triton.kernels import chunk_state, grad_qk, output
from qkv.attention.triton.kernels.common import PassSizes, Scales
from qkv.attention.triton.launch_cache import CachedKernel, Constants
from qkv.attention.triton.plan import Partition, Plan, ceil_div, next_power_of_two

CHUNK_STATE = CachedKernel(
    chunk_state.chunk_state, chunk_state.StatePointers, chunk_state.StateStrides, chunk_state.StateSizes, float
)
SCAN = CachedKernel(chunk_state.scan, chunk_state.ScanPointers, chunk_state.ScanSizes)
OUTPUT = CachedKernel(output.output, output.OutputPointers, output.OutputStrides, PassSizes, Scales)
GRAD_QK = CachedKernel(grad_qk.grad_qk, grad_qk.GradPointers, grad_qk.GradStrides, PassSizes, Scales)
MAX_BLOCK = 128
"""Maximum number of tokens per block; offsets within a block have 32 bits."""
MAX_SCAN_BLOCK = 1024
NO_ORDER = Partition(1, 1, False)
"""Partition without causal order: one prefix for every query, whatever its segment."""


@dataclass(frozen=True)
class StateTensors:
    """States in whole tiles: sums of features times values, (rows, slots, features, values), and of features."""

    kv_sum: Tensor
    k_sum: Tensor


@dataclass(frozen=True)
class StatePrefix:
    """States that queries read: before each segment of a split, then before each split; or one state of all tokens."""

    state: StateTensors
    partition: Partition

    @property
    def slots(self) -> int:
        """States per row."""
        return self.state.kv_sum.shape[1]

    @property
    def before_splits(self) -> bool:
        """Whether there are states before the splits."""
        return self.slots > (self.partition.segments if self.partition.has_local_prefix else 0)


@dataclass(frozen=True)
class StateInputs:
    """Tokens that a state sums up: features of x times c, weighted in the backward."""

    x: Tensor
    c: Tensor
    scale: float
    inv_norm: Tensor | None = None
    d_norm: Tensor | None = None
    reverse: bool = False


@dataclass(frozen=True)
class StateOptions:
    """Initial state, mask and decay of an accumulation."""

    mask: Tensor | None = None
    decay: Tensor | None = None
    gate: GateSums | None = None
    initial: StateTensors | None = None
    forward_prefix: StateTensors | None = None
    """Prefixes of the forward, for the gradient of the decay."""


@dataclass(frozen=True)
class PassOperands:
    """The two sides of a pass: `a` attends to `b`, whose values are `c`. If reversed, keys attend to queries."""

    a: Tensor
    b: Tensor
    c: Tensor
    a_scale: float
    b_scale: float
    mask: Tensor | None = None
    decay: Tensor | None = None
    gate: GateSums | None = None
    inv_norm: Tensor | None = None
    """1 / normalizer of each query, in the backward."""
    d_norm: Tensor | None = None
    """Gradient of each normalizer: the pass of the queries writes it, that of the keys reads it."""
    reverse: bool = False


def strides(x: Tensor) -> tuple[int, ...]:
    """Return the `Strides` of batch, head and token; the last axis is contiguous."""
    return x.stride()[:3]


def with_contiguous_rows(x: Tensor) -> Tensor:
    """Return x with its last axis contiguous and each block within 32-bit offsets; copied only if needed."""
    near = x.stride(2) * MAX_BLOCK < 2**31
    return x if near and (x.stride(-1) == 1 or x.shape[-1] == 1) else x.contiguous()


def empty_like_rows(x: Tensor) -> Tensor:
    """Return an empty tensor like x, with its last axis contiguous; overlapping memory (`unfold`) is not reproduced."""
    empty = torch.empty_like(x)
    return empty if empty.stride(-1) == 1 or x.shape[-1] == 1 else x.new_empty(x.shape)


def accumulate_state(
    plan: Plan, inputs: StateInputs, options: StateOptions
) -> tuple[StatePrefix, StateTensors, Tensor | None]:
    """Return what each segment reads, the state of all tokens, and the decay's gradient between segments per row."""
    batch, heads, length = inputs.x.shape[:3]
    rows, new = batch * plan.key_heads, inputs.x.new_empty
    partition = plan.partition(length, rows, has_decay=options.decay is not None)
    sizes = plan.padded_features, plan.padded_values
    k_features = plan.padded_features if plan.kernel.normalizes else 0
    state = StateTensors(
        new(rows, partition.num_splits, *sizes, dtype=torch.float32),
        new(rows, partition.num_splits, k_features, dtype=torch.float32),
    )
    slots = partition.prefix_slots(has_initial=options.initial is not None) if plan.causal else 0
    prefix = StateTensors(
        new(rows, slots, *sizes, dtype=plan.dot_dtype), new(rows, slots, k_features, dtype=torch.float32)
    )
    gate_values, segment_fades = _gate_tensors(options.gate)
    fades = None if options.gate is None else new(rows, partition.num_splits, dtype=torch.float32)
    if rows:
        CHUNK_STATE(
            (partition.num_splits * rows, plan.padded_features // plan.write_tile * plan.value_blocks, 1),
            (
                inputs.x, inputs.c, *plan.tables(inputs.x.device), plan.state_weights(inputs.x.device),
                inputs.inv_norm, inputs.d_norm, options.mask, options.decay, gate_values,
                state.kv_sum, state.k_sum, prefix.kv_sum, prefix.k_sum, segment_fades, fades,
            ),
            (
                (strides(inputs.x), strides(inputs.c)),
                (
                    length, partition.segments_per_split, partition.num_splits, slots, rows, plan.key_heads, heads
                ),
                inputs.scale,
            ),
            _state_constants(
                plan, inputs.inv_norm is not None, options.mask is not None, options.decay is not None,
                fades is not None, inputs.reverse, partition.has_local_prefix,
            ),
        )  # fmt: skip
    found = StatePrefix(prefix, partition)
    if plan.causal and not found.before_splits:
        return found, StateTensors(state.kv_sum[:, 0], state.k_sum[:, 0]), None
    final, d_decay = _scan(plan, state, found, options, fades, length, reverse=inputs.reverse)
    return found, final, d_decay


@lru_cache(maxsize=1024)
def _state_constants(
    plan: Plan, has_inv_norm: bool, has_mask: bool, has_decay: bool, has_gate: bool, reverse: bool, local_prefix: bool
) -> Constants:
    configs = plan.pass_configs(gated=has_gate)
    config = configs.grad_state if reverse else configs.state
    flags = Flags(
        NORMALIZE=plan.kernel.normalizes,
        EXPANDS=plan.has_feature_expansion,
        REVERSE=reverse,
        HAS_MASK=has_mask,
        HAS_DECAY=has_decay,
        HAS_GATE=has_gate,
        HAS_INV_NORM=has_inv_norm,
        LOCAL_PREFIX=local_prefix,
    )
    tiles = plan.tile_sizes(plan.write_tile, config)
    return Constants({"KIND": plan.kernel.functions, "FLAGS": flags, "TILES": tiles}, config.options())


def _scan(
    plan: Plan,
    state: StateTensors,
    prefix: StatePrefix,
    options: StateOptions,
    fades: Tensor | None,
    length: int,
    *,
    reverse: bool,
) -> tuple[StateTensors, Tensor | None]:
    """Fill the prefixes of the splits; return the final state, and the decay's gradient per row."""
    rows, segments, features, columns = state.kv_sum.shape
    final = StateTensors(
        state.kv_sum.new_empty(rows, features, columns), state.k_sum.new_empty(rows, *state.k_sum.shape[2:])
    )
    block = min(MAX_SCAN_BLOCK, next_power_of_two(features * columns))
    kv_blocks, k_blocks = ceil_div(features * columns, block), ceil_div(state.k_sum.shape[2], block)
    initial_kv, initial_k = _tensors(options.initial)
    forward_kv, forward_k = _tensors(options.forward_prefix)
    d_decay = None
    if options.decay is not None and options.forward_prefix is not None:
        d_decay = state.kv_sum.new_empty(rows, kv_blocks + k_blocks)
    if rows:
        SCAN(
            (rows, kv_blocks + k_blocks, 1),
            (
                state.kv_sum, initial_kv, forward_kv, prefix.state.kv_sum, final.kv_sum,
                state.k_sum, initial_k, forward_k, prefix.state.k_sum, final.k_sum,
                options.decay, fades, plan.state_weights(state.kv_sum.device), d_decay,
            ),
            ((features, columns, segments, prefix.slots, length, plan.key_heads),),
            _scan_constants(
                plan, kv_blocks, options.initial is not None, options.decay is not None, fades is not None, reverse,
                d_decay is not None, block,
            ),
        )  # fmt: skip
    return final, None if d_decay is None else d_decay.sum(1) * plan.result_scale


@lru_cache(maxsize=1024)
def _scan_constants(
    plan: Plan,
    kv_blocks: int,
    has_initial: bool,
    has_decay: bool,
    has_gate: bool,
    reverse: bool,
    grad_decay: bool,
    block: int,
) -> Constants:
    values = {
        "NUM_KV_BLOCKS": kv_blocks, "EXPANDS": plan.has_feature_expansion, "HAS_INITIAL": has_initial,
        "HAS_PREFIX": plan.causal, "HAS_DECAY": has_decay, "HAS_GATE": has_gate, "REVERSE": reverse,
        "GRAD_DECAY": grad_decay, "SEGMENT": plan.segment, "BLOCK": block,
    }  # fmt: skip
    return Constants(values, {"num_warps": 4})


def compute_output(
    plan: Plan, operands: PassOperands, prefix: StatePrefix | None, out: Tensor, crossing: Crossing | None = None
) -> Tensor:
    """Fill `out`, and `crossing` if it is given; return the inverse normalizers of the forward, or an empty tensor."""
    batch, heads, length = operands.a.shape[:3]
    normalizes = plan.kernel.normalizes and not operands.reverse
    inv_norm = out.new_empty(batch, heads, length if normalizes else 0, dtype=torch.float32)
    configs = plan.pass_configs(gated=operands.gate is not None)
    block = plan.block((configs.grad_v if operands.reverse else configs.output).block)
    if out.numel():
        OUTPUT(
            (ceil_div(length, block) * plan.value_blocks * batch * heads, 1, 1),
            (
                operands.a, operands.b, operands.c, *plan.tables(out.device), operands.inv_norm, operands.mask,
                operands.decay, *_gate_tensors(operands.gate), *_prefix_tensors(prefix),
                *_crossing_tensors(plan, crossing), out, inv_norm,
            ),
            (
                (strides(operands.a), strides(operands.b), strides(operands.c), strides(out)),
                _pass_sizes(plan, operands, prefix, crossing),
                (operands.a_scale, operands.b_scale, plan.score_scale, plan.result_scale),
            ),
            _output_constants(
                plan, operands.inv_norm is not None, _pass_flags(operands, prefix),
                None if crossing is None else crossing.forward.before_splits,
            ),
        )  # fmt: skip
    return inv_norm


@lru_cache(maxsize=1024)
def _output_constants(
    plan: Plan, has_inv_norm: bool, flags: tuple[bool, bool, bool, bool, bool, bool], forward_split: bool | None
) -> Constants:
    has_mask, has_decay, has_gate, reverse, local_prefix, split_prefix = flags
    has_crossing = forward_split is not None
    configs = plan.pass_configs(gated=has_gate)
    config = configs.grad_v if reverse else configs.output
    found = Flags(
        NORMALIZE=plan.kernel.normalizes and not reverse,
        EXPANDS=plan.has_feature_expansion,
        REVERSE=reverse,
        HAS_MASK=has_mask,
        HAS_DECAY=has_decay,
        HAS_GATE=has_gate,
        CROSSING=has_crossing,
        SUM_NORMS=has_crossing and plan.kernel.normalizes,
        FORWARD_SPLIT=bool(forward_split),
        HAS_INV_NORM=has_inv_norm,
        INTRA=plan.intra,
        LOCAL_PREFIX=local_prefix,
        SPLIT_PREFIX=split_prefix,
    )
    tiles = plan.tile_sizes(plan.read_tile(config), config)
    return Constants({"KIND": plan.kernel.functions, "FLAGS": found, "TILES": tiles}, config.options())


def compute_grad_qk(
    plan: Plan, operands: PassOperands, g: Tensor, forward_out: Tensor, prefix: StatePrefix | None, out: Tensor
) -> Tensor | None:
    """Fill `out` with the gradients of `operands.a`; return the decay's gradient per token, or None.

    With a gate, these are sums of weights times their gradients: see `gate_gradient`.
    The pass of the queries fills `operands.d_norm`, too, from the outputs of the forward.
    """
    batch, heads, length = operands.a.shape[:3]
    fades = operands.decay is not None or operands.gate is not None
    d_decay = out.new_empty(batch, heads, length, dtype=torch.float32) if fades else None
    configs = plan.pass_configs(gated=operands.gate is not None)
    block = plan.block((configs.grad_k if operands.reverse else configs.grad_q).block)
    if out.numel():
        GRAD_QK(
            (ceil_div(length, block) * batch * heads, 1, 1),
            (
                operands.a, operands.b, operands.c, g, *plan.tables(out.device), operands.inv_norm, operands.d_norm,
                operands.mask, operands.decay, *_gate_tensors(operands.gate), *_prefix_tensors(prefix), forward_out,
                out, d_decay,
            ),
            (
                (
                    strides(operands.a), strides(operands.b), strides(operands.c), strides(g), strides(forward_out),
                    strides(out),
                ),
                _pass_sizes(plan, operands, prefix),
                (operands.a_scale, operands.b_scale, plan.score_scale, plan.result_scale),
            ),
            _grad_constants(plan, *_pass_flags(operands, prefix)),
        )  # fmt: skip
    return d_decay


@lru_cache(maxsize=1024)
def _grad_constants(
    plan: Plan, has_mask: bool, has_decay: bool, has_gate: bool, reverse: bool, local_prefix: bool, split_prefix: bool
) -> Constants:
    configs = plan.pass_configs(gated=has_gate)
    config = configs.grad_k if reverse else configs.grad_q
    flags = Flags(
        NORMALIZE=plan.kernel.normalizes,
        EXPANDS=plan.has_feature_expansion,
        REVERSE=reverse,
        HAS_MASK=has_mask,
        HAS_DECAY=has_decay,
        HAS_GATE=has_gate,
        SUM_PAIRS=has_gate and plan.sums_pairs,
        INTRA=plan.intra,
        LOCAL_PREFIX=local_prefix,
        SPLIT_PREFIX=split_prefix,
    )
    tiles = plan.tile_sizes(plan.read_tile(config), config)
    return Constants({"KIND": plan.kernel.functions, "FLAGS": flags, "TILES": tiles}, config.options())


def _tensors(state: StateTensors | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if state is None else (state.kv_sum, state.k_sum)


def _prefix_tensors(prefix: StatePrefix | None) -> tuple[Tensor | None, Tensor | None]:
    return _tensors(None if prefix is None else prefix.state)


def _gate_tensors(gate: GateSums | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if gate is None else (gate.values, gate.fades)


def _crossing_tensors(plan: Plan, crossing: Crossing | None) -> tuple[Tensor | None, ...]:
    if crossing is None:
        return None, None, None, None, None
    state = crossing.forward.state
    return plan.state_weights(crossing.sums.device), crossing.fades, state.kv_sum, state.k_sum, crossing.sums


def _pass_flags(operands: PassOperands, prefix: StatePrefix | None) -> tuple[bool, bool, bool, bool, bool, bool]:
    """Return has_mask, has_decay, has_gate, reverse, local_prefix and split_prefix."""
    local = prefix is not None and prefix.partition.has_local_prefix
    before = prefix is not None and prefix.before_splits
    has_gate = operands.gate is not None
    return operands.mask is not None, operands.decay is not None, has_gate, operands.reverse, local, before


def _pass_sizes(
    plan: Plan, operands: PassOperands, prefix: StatePrefix | None, crossing: Crossing | None = None
) -> tuple[int | None, ...]:
    """Return the `PassSizes`."""
    batch, heads, length = operands.a.shape[:3]
    splits = (1, 1, 1)
    if prefix is not None:
        splits = prefix.partition.num_splits, prefix.partition.segments_per_split, prefix.slots
    b_heads, b_length = operands.b.shape[1:3]
    forward_slots = None if crossing is None else crossing.forward.slots
    return (length, b_length, batch * heads, heads, b_heads, plan.key_heads, *splits, forward_slots)
