"""Attention of one part of a sequence, whose other parts are at other processes.

    summary_r = summarize(keys and values of part r)                         at every process, alone
    state_r   = advance(start, summaries of the parts before r)              after one all-gather of the summaries
    outputs_r = step(queries, keys and values of part r, state_r)

Without causality the state has the summaries of all parts, and queries see all of it. For kinds that sum over keys this
is LASP-2: the size of a summary does not depend on the number of tokens. Paper: https://arxiv.org/abs/2502.07563.
"""

from dataclasses import replace

from torch import Tensor

from qkv.attention.base import Attention, State
from qkv.attention.internal.validation import Modifiers, check_inputs
from qkv.attention.parallel.group import HEADER_BYTES, SequencePart
from qkv.attention.parallel.summary import SummaryOptions
from qkv.cost import Shape
from qkv.shapes import Keys, Outputs, Queries, Values

_PLAIN = SummaryOptions()


def attend_part(
    attention: Attention,
    part: SequencePart,
    q: Queries,
    k: Keys,
    v: Values,
    modifiers: Modifiers,
    state: State | None = None,
) -> tuple[Outputs, State]:
    """Return the outputs of the tokens of this process, and the state after them.

    All tensors are those of this part. Only `bias` has an entry for every key that the queries of this part can see:
    those of the parts before it, too, and without causality those of all parts; keys that a window has dropped may be
    left out. `state` is the state before the first part (default: no tokens).
    """
    _check(attention, part, (q, k, v), modifiers)
    state = start_state(attention, q, k, v, modifiers) if state is None else state
    causal, given = modifiers.causal, {name: getattr(modifiers, name) for name in ("mask", "decay", "beta", "starts")}
    own = attention.summarize(k, v, state, **given)
    others, binding = part.gather_summaries(own, attention.past_keys, causal=causal)
    state = attention.advance(state, others)
    if not causal:
        return binding(attention.attend_state(q, state, bias=modifiers.bias)), state
    bias = modifiers.bias
    if bias is not None:  # a window has dropped the first keys
        bias = bias[..., max(bias.shape[3] - k.shape[2] - state.addressable_keys, 0) :]
    out, state = attention.step(q, k, v, state, bias=bias, **given)
    return binding(out), state


def exchanged_bytes(attention: Attention, shape: Shape, parts: int, options: SummaryOptions = _PLAIN) -> int:
    """Return the bytes that each of `parts` processes receives from the others in one forward.

        (parts - 1) * (bytes of a summary + 16)

    `shape.keys` are the tokens of the longest part. The 16 bytes are the length of a part, and which arguments it has.
    The backward returns the gradient of every floating-point tensor that needs one to the process that sent it:
    process r receives parts - 1 - r of them if causal, else parts - 1.
    """
    summary = sum(attention.summary_bytes(shape, options).values())
    return (parts - 1) * (summary + HEADER_BYTES) if parts > 1 else 0


def start_state(attention: Attention, q: Queries, k: Keys, v: Values, modifiers: Modifiers) -> State:
    """Return the state before the first token of a call with these inputs."""
    decay, beta = modifiers.decay, modifiers.beta
    rates = q.shape[1] if decay is not None and not modifiers.gated else modifiers.gate_heads
    rates = max(rates, 0 if beta is None else beta.shape[1])
    sizes = q.shape[0], q.shape[1], q.shape[3], v.shape[3]
    key_heads = attention.state_heads(q.shape[1], k.shape[1], rates)
    return attention.start(*sizes, key_heads=key_heads, dtype=q.dtype, device=q.device)


def _check(
    attention: Attention, part: SequencePart, tensors: tuple[Tensor, Tensor, Tensor], modifiers: Modifiers
) -> None:
    """Raise on an input that does not fit this part."""
    q, k, _ = tensors
    if q.shape[2] != part.length or k.shape[2] != part.length:
        raise ValueError(
            f"this process has {part.length} tokens of the sequence, got {q.shape[2]} queries and {k.shape[2]} keys"
        )
    if modifiers.mask is not None and modifiers.mask.dim() != 2:
        raise ValueError(
            f"mask must have shape (batch, tokens of this part), got {tuple(modifiers.mask.shape)}; a mask of pairs "
            "cannot be split, so use starts for documents"
        )
    if modifiers.causal:  # `step` checks the bias
        check_inputs(attention, *tensors, replace(modifiers, bias=None))
    else:
        check_inputs(attention, *tensors, modifiers, past=part.total - part.length)
    window = getattr(attention, "window", None)
    if window is not None and not modifiers.causal:
        raise ValueError(f"window={window} ends at each query's own position, so it needs causal=True")
