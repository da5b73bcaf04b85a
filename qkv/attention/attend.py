"""Attention kinds by name: build one, or attend in one call."""

import ast
import inspect
from typing import Any, NamedTuple

from qkv.attention.base import Attention, kinds
from qkv.errors import unknown_name_error
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, Values, Weights


def build(kind: str, *, key_dim: int | None = None, **options: Any) -> Attention:
    """Build the mechanism of this name with these options.

    `key_dim` goes to kinds whose parameters depend on the width of keys, such as additive. Other kinds ignore it.
    """
    if key_dim is not None and "key_dim" in _parameters(kind):
        options["key_dim"] = key_dim
    return _construct(kind, options)


def parse(text: str, *, key_dim: int | None = None) -> Attention:
    """Build the mechanism that a spec such as "taylor" or "taylor(order=4)" names; options must be literals.

    `key_dim` is used as in `build`.
    """
    spec = _read_spec(text)
    return build(spec.name, **{"key_dim": key_dim, **spec.options})


class Call(NamedTuple):
    """A name with options, such as taylor(order=4)."""

    name: str
    options: dict[str, Any]


def read_call(text: str) -> Call | None:
    """Split a text such as "taylor(order=4)" into a name and options, which must be literals; None if it is no call."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return Call(call.id, {})
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return Call(call.func.id, {str(keyword.arg): _literal(keyword) for keyword in call.keywords})
    except SyntaxError:
        pass
    return None


def _read_spec(text: str) -> Call:
    """Read the spec of a kind."""
    call = read_call(text)
    if call is None:
        parts = "; parts after + belong to the setting attention of a model" if "+" in text else ""
        raise ValueError(f"attention {text!r} must be a kind with options, such as taylor or taylor(order=4){parts}")
    return call


def _resolve(kind: str | Attention, options: dict[str, Any]) -> Attention:
    """Return the mechanism of a call: the object itself, or one built from a name or a spec and options."""
    for name, ours in _SDPA_NAMES.items():
        if name in options:
            raise ValueError(f"{name} is an argument of scaled_dot_product_attention; here, {ours}")
    if isinstance(kind, Attention):
        if options:
            raise ValueError(f"kind={kind!r} already has its options; pass {', '.join(options)} to its constructor")
        return kind
    if not isinstance(kind, str):
        raise TypeError(f'kind must be a name, a spec such as "taylor(order=4)" or an Attention, got {kind!r}')
    spec = _read_spec(kind)
    twice = sorted(spec.options.keys() & options.keys())
    if twice:
        raise ValueError(f"kind={kind!r} has {twice[0]} already, but {twice[0]}={options[twice[0]]!r} is given as well")
    return _construct(spec.name, {**spec.options, **options})


_SDPA_NAMES = {
    "is_causal": "use causal=",
    "attn_mask": "use mask= (bool, True = attend) or bias= (float, added to the scores)",
    "dropout_p": "use dropout= of kind softmax",
    "enable_gqa": "leave it out: k and v may have fewer heads than q",
}
"""Argument of torch's `scaled_dot_product_attention` -> what to use here instead."""


def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a kind's constructor."""
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in inspect.signature(kinds[kind]).parameters.items() if p.kind not in unnamed}


def _construct(kind: str, options: dict[str, Any]) -> Attention:
    """Call the constructor of a kind; a missing or unknown option raises."""
    parameters = _parameters(kind)
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in options]
    if missing:
        raise ValueError(
            f"kind={kind!r} has learned parameters, so it needs {', '.join(missing)}: "
            f"qkv.attention.{kinds[kind].__name__}({', '.join(missing)}=...)(q, k, v)"
        )
    for name in options:
        if name not in parameters:
            raise unknown_name_error(f"option of attention kind {kind!r}:", name, parameters)
    return kinds[kind](**options)


def _literal(option: ast.keyword) -> Any:
    try:
        return ast.literal_eval(option.value)
    except ValueError:
        source = ast.unparse(option.value)
        raise ValueError(
            f"{option.arg} must be a number, a string in quotes, True, False or None, got {source}"
        ) from None


def attend(
    q: Queries,
    k: Keys,
    v: Values,
    kind: str | Attention = "softmax",
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    decay: Decay | None = None,
    beta: Beta | None = None,
    starts: Starts | None = None,
    **options: Any,
) -> Outputs:
    """Compute attention of the given kind in one call.

    `kind` is a name, a spec such as "taylor(order=4)", or an object such as `Taylor(order=4)`.

    >>> import torch
    >>> from qkv.attention import attend
    >>> q, k, v = torch.randn(3, 2, 4, 16, 8)  # each (batch, heads, time, dim)
    >>> attend(q, k, v, kind="taylor", causal=True, order=2).shape
    torch.Size([2, 4, 16, 8])

    `options` are those of the kind, such as `scale`, `backend`, `order`, `window` or `chunk`.
    """
    modifiers = _given(causal=causal, mask=mask, bias=bias, decay=decay, beta=beta, starts=starts)
    return _resolve(kind, options)(q, k, v, **modifiers)


def weights(
    q: Queries,
    k: Keys,
    kind: str | Attention = "softmax",
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    decay: Decay | None = None,
    beta: Beta | None = None,
    starts: Starts | None = None,
    **options: Any,
) -> Weights:
    """Return the attention matrix that `attend` applies with these arguments, even where it never builds it."""
    modifiers = _given(causal=causal, mask=mask, bias=bias, decay=decay, beta=beta, starts=starts)
    return _resolve(kind, options).weights(q, k, **modifiers)


def _given(**modifiers: Any) -> dict[str, Any]:
    """Leave out what was not given: a kind need not have every argument."""
    return {name: value for name, value in modifiers.items() if value is not None}
