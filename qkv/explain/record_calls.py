"""See what attention mechanisms are given and what they give back, without any change to the model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.attention import Attention
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@dataclass(frozen=True)
class Call:
    """One use of a mechanism's fast form."""

    attention: Attention
    q: Queries
    k: Keys
    v: Values
    options: dict[str, Any]
    """`causal`, `mask`, `bias` and `decay`, those that were given."""
    output: Outputs

    def weights(self) -> Weights:
        """The definition, on the q and k of this call: `weights @ v` is `output`, whatever form made it."""
        return self.attention.weights(self.q, self.k, **self.options)


@contextmanager
def watch(attentions: Sequence[Attention]) -> Iterator[list[Call]]:
    """A list that fills with every call of these mechanisms, in order, until the block ends.

    Only `forward` is seen; `step`, and `forward_seen` for packed rows on a GPU, are other methods and pass unseen.
    """
    calls: list[Call] = []

    def note(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        assert isinstance(module, Attention)
        given = dict(zip(("q", "k", "v"), positional, strict=False)) | named
        q, k, v = (given.pop(name) for name in ("q", "k", "v"))
        calls.append(Call(module, q, k, v, given, output))

    # one hook for a mechanism that several layers share, or each call would be there twice
    hooks = [attention.register_forward_hook(note, with_kwargs=True) for attention in dict.fromkeys(attentions)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
