"""Attention as one node of a traced graph: `qkv::attention`, which runs the eager form inside.

`torch.compile` and `torch.export` would unroll a loop over chunks, one graph per length, and choose between forms by
length. The operator hides both: its fake knows the shapes at any length, and real tensors take the eager code, with its
checks and repairs. The backward is a second operator, which runs the forward again and lets autograd differentiate it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from qkv.attention.attend import parse
from qkv.attention.base import Attention
from qkv.attention.internal.validation import Modifiers
from qkv.attention.recurrent_state import RecurrentState
from qkv.attention.triton.custom_op import define, register_backward

Results = tuple[Tensor, Tensor, Tensor]

INPUTS = 9
"""Tensors that come first: q, k, v, mask, decay, beta, starts, kv_sum, k_sum."""
DIFFERENTIABLE = (0, 1, 2, 4, 5, 7, 8)
"""Those of them that have gradients."""


def is_node(mechanism: Attention) -> bool:
    """Return whether to call the operator: torch traces, and kind and options are enough to build the mechanism.

    Not with backend="reference", which gives a graph of torch's own operators, nor under the transforms of torch.func.
    """
    if not torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return mechanism.as_node and mechanism.backend != "reference" and mechanism.is_built_by_its_options()


def writes_in_place() -> bool:
    """Return whether a step may write into its state: in inference mode, but not while torch traces."""
    # in this order: Dynamo cannot trace the second query
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def forward(mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, modifiers: Modifiers) -> Tensor:
    """Return the outputs of `mechanism.forward` as a call of the operator."""
    return _call(mechanism, (q, k, v), modifiers, (None, None))[0]


def step(
    mechanism: Attention, tokens: tuple[Tensor, Tensor, Tensor], state: RecurrentState, modifiers: Modifiers
) -> tuple[Tensor, RecurrentState]:
    """Return outputs and the next state of `mechanism.step` as a call of the operator; `tokens` are q, k and v."""
    state.require_unconsumed()
    out, kv_sum, k_sum = _call(mechanism, tokens, modifiers, (state.kv_sum, state.k_sum))
    length = state.length + tokens[1].shape[2]
    return out, RecurrentState(kv_sum, None if state.k_sum is None else k_sum, length)


def _call(
    mechanism: Attention,
    tokens: tuple[Tensor, Tensor, Tensor],
    modifiers: Modifiers,
    sums: tuple[Tensor | None, Tensor | None],
) -> Results:
    # every option is read here, so that torch compiles again if one changes; a float may be symbolic, so that it
    # cannot be printed
    floats = [name for name in mechanism.options if isinstance(getattr(mechanism, name), float)]
    others = [f"{name}={getattr(mechanism, name)!r}" for name in mechanism.options if name not in floats]
    escaped = [text.replace("%", "%%") for text in others]
    spec = f"{mechanism.kind}({', '.join([*escaped, *(f'{name}=%r' for name in floats)])})"
    values = [getattr(mechanism, name) for name in floats]
    given = modifiers.mask, modifiers.decay, modifiers.beta, modifiers.starts
    return cast("Results", attention(*tokens, *given, *sums, spec, values, [modifiers.causal, mechanism.training]))


@lru_cache(maxsize=256)
def _build(spec: str, training: bool) -> Attention:
    mechanism = parse(spec).train(training)
    mechanism.as_node = False  # its calls run here, even if torch computes with constants while it traces
    return mechanism


def _forward(
    q: Tensor, k: Tensor, v: Tensor,
    mask: Tensor | None, decay: Tensor | None, beta: Tensor | None, starts: Tensor | None,
    kv_sum: Tensor | None, k_sum: Tensor | None, spec: str, floats: Sequence[float], flags: Sequence[bool],
) -> Results:  # fmt: skip
    """Return outputs and, if a state is given, its next sums; an empty tensor for each that is absent.

    `flags` are `causal`, and whether the mechanism is in training mode.
    """
    given = (q, k, v, mask, decay, beta, starts, kv_sum, k_sum)
    with torch.no_grad():
        found = _run(_build(spec % tuple(floats), flags[1]), given, flags[0])
    results = [_own(x, given) for x in found]
    empty = [q.new_empty(0) for _ in range(3 - len(results))]
    return cast("Results", (*results, *empty))


def _run(mechanism: Attention, given: tuple[Tensor | None, ...], causal: bool) -> tuple[Tensor, ...]:
    """Run the eager form; return outputs and the sums of the next state, if there is one."""
    q, k, v, mask, decay, beta, starts, kv_sum, k_sum = given
    assert q is not None
    assert k is not None
    assert v is not None
    names = {"mask": mask, "decay": decay, "beta": beta, "starts": starts}
    modifiers: dict[str, Any] = {name: x for name, x in names.items() if x is not None}
    if kv_sum is None:
        return (mechanism(q, k, v, causal=causal, **modifiers),)
    out, state = mechanism.step(q, k, v, RecurrentState(kv_sum, k_sum), **modifiers)
    return out, *cast("RecurrentState", state).sums


def _own(x: Tensor, given: Sequence[Tensor | None]) -> Tensor:
    """Return a contiguous tensor with its own memory: results of an operator may not share that of its arguments."""
    x = x.detach().contiguous()
    shared = any(y is not None and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for y in given)
    return x.clone() if shared else x


_AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.ADInplaceOrView
)
"""What records operations for autograd, and the views and writes among them."""


def _recording() -> torch._C._ForceDispatchKeyGuard:
    """Return a context in which this thread records operations for autograd again.

    torch calls an operator below autograd, in the same thread, so that `torch.enable_grad` alone records nothing there.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded - _AUTOGRAD)


def _backward(
    arriving: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    spec: str,
    floats: Sequence[float],
    flags: Sequence[bool],
    needed: Sequence[bool],
) -> list[Tensor]:
    """Return the gradients of the differentiable inputs; an empty tensor for each that is not needed."""
    mechanism = _build(spec % tuple(floats), flags[1])
    with torch.inference_mode(False), _recording(), torch.enable_grad():
        leaves = [x if x is None else x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
        results = _run(mechanism, tuple(leaves), flags[0])
        pairs = zip(results, arriving, strict=False)
        chosen = [(x, y) for x, y in pairs if y is not None and x.requires_grad]
        wanted = [x for x in leaves if x is not None and x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [x for x, _ in chosen], wanted, [y for _, y in chosen], allow_unused=True, materialize_grads=True
            )
        )
    return [_own(next(found), arriving) if needed[i] else torch.empty(0) for i in DIFFERENTIABLE]


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Results:
    kv_sum, k_sum = arguments[4:6]
    out = q.new_empty(*q.shape[:3], v.shape[3])
    kv_sum, k_sum = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (kv_sum, k_sum))
    return out, kv_sum, k_sum


def _backward_fake(arriving: Any, inputs: Any, *options: Any) -> list[Tensor]:
    needed = options[-1]
    return [inputs[i].new_empty(inputs[i].shape) if needed[i] else torch.empty(0) for i in DIFFERENTIABLE]


attention = define("attention", _forward, _forward_fake)
attention_backward = define("attention_backward", _backward, _backward_fake)


def _save_for_backward(ctx: Any, arguments: tuple[Any, ...], results: Results) -> None:
    ctx.options = arguments[INPUTS:]
    ctx.save_for_backward(*arguments[:INPUTS])
    ctx.mark_non_differentiable(*(x for x, y in zip(results[1:], arguments[7:INPUTS], strict=True) if y is None))
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, g: Tensor | None, g_kv: Tensor | None, g_k: Tensor | None) -> tuple[Any, ...]:
    inputs = ctx.saved_tensors
    needed = [bool(x) for x in ctx.needs_input_grad[1 : INPUTS + 1]]
    if g is None:
        g = inputs[0].new_zeros(*inputs[0].shape[:3], inputs[2].shape[3])
    found = attention_backward([g, g_kv, g_k], inputs, *ctx.options, needed)
    gradients: list[Tensor | None] = [None] * (INPUTS + len(ctx.options))
    for i, gradient in zip(DIFFERENTIABLE, found, strict=True):
        gradients[i] = gradient if needed[i] else None
    return tuple(gradients)


register_backward(attention, _save_for_backward, _gradients)
