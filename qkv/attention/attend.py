"""The one-line form: an attention kind by name."""

import ast
import inspect
from typing import Any

from qkv.attention.base import Attention, kinds
from qkv.registry import unknown_name_error
from qkv.shapes import Bias, Decay, Keys, Mask, Outputs, Queries, Values, Weights


def build(kind: str, **options: Any) -> Attention:
    """The mechanism of this name with these options; a kind with weights of its own is refused."""
    cls = kinds[kind]
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {name: p for name, p in inspect.signature(cls).parameters.items() if p.kind not in unnamed}
    needed = [name for name, p in parameters.items() if p.default is p.empty and name not in options]
    if needed:
        raise ValueError(
            f"kind={kind!r} has weights of its own, so it is built, not named: "
            f"qkv.attention.{cls.__name__}({', '.join(needed)}=...)(q, k, v)"
        )
    for name in options:
        if name not in parameters:
            raise unknown_name_error(f"option of attention kind {kind!r}:", name, parameters)
    return cls(**options)


def parse(text: str) -> Attention:
    """The mechanism that a text such as "taylor" or "taylor(order=4)" names; only plain values can stand in it."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return build(call.id)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return build(call.func.id, **{str(keyword.arg): _plain(keyword) for keyword in call.keywords})
    except SyntaxError:
        pass
    raise ValueError(f"attention {text!r} is not a kind with options, such as taylor or taylor(order=4)")


def _plain(option: ast.keyword) -> Any:
    try:
        return ast.literal_eval(option.value)
    except ValueError:
        written = ast.unparse(option.value)
        raise ValueError(
            f"{option.arg} must be a number, a text in quotes, True, False or None, got {written}"
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
    """Attention in one call: `attend(q, k, v, kind="taylor", causal=True, order=2)`.

    Options are those of the kind: `scale` and `backend` for all, `order`, `window`, `chunk` where there.
    """
    return build(kind, **options)(q, k, v, causal=causal, mask=mask, bias=bias, decay=decay)


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
    """The attention matrix that `attend` with the same arguments applies, also where it never builds it."""
    return build(kind, **options).weights(q, k, causal=causal, mask=mask, bias=bias, decay=decay)
