"""Attention kinds by name: build one, or attend in one call."""

import ast
import inspect
from typing import Any

from qkv.attention.base import Attention, kinds
from qkv.errors import unknown_name_error
from qkv.shapes import Bias, Decay, Keys, Mask, Outputs, Queries, Values, Weights


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
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return build(call.id, key_dim=key_dim)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            options = {str(keyword.arg): _literal(keyword) for keyword in call.keywords}
            return build(call.func.id, **{"key_dim": key_dim, **options})
    except SyntaxError:
        pass
    raise ValueError(f"attention {text!r} must be a kind with options, such as taylor or taylor(order=4)")


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
    kind: str = "softmax",
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    decay: Decay | None = None,
    **options: Any,
) -> Outputs:
    """Compute attention of the given kind in one call.

    >>> import torch
    >>> from qkv.attention import attend
    >>> q, k, v = torch.randn(3, 2, 4, 16, 8)  # each (batch, heads, time, dim)
    >>> attend(q, k, v, kind="taylor", causal=True, order=2).shape
    torch.Size([2, 4, 16, 8])

    `options` are those of the kind, such as `scale`, `backend`, `order`, `window` or `chunk`.
    """
    return _construct(kind, options)(q, k, v, causal=causal, mask=mask, bias=bias, decay=decay)


def weights(
    q: Queries,
    k: Keys,
    kind: str = "softmax",
    *,
    causal: bool = False,
    mask: Mask | None = None,
    bias: Bias | None = None,
    decay: Decay | None = None,
    **options: Any,
) -> Weights:
    """Return the attention matrix that `attend` applies with these arguments, even where it never builds it."""
    return _construct(kind, options).weights(q, k, causal=causal, mask=mask, bias=bias, decay=decay)
