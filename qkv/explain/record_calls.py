"""Record the inputs and outputs of attention mechanisms by forward hooks, without changing the model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.attention import Attention
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@dataclass(frozen=True)
class AttentionCall:
    """One call of a mechanism's `forward`."""

    attention: Attention
    q: Queries
    k: Keys
    v: Values
    options: dict[str, Any]
    """`causal`, `mask`, `bias`, `decay`, `beta` and `starts`, as far as they were passed."""
    output: Outputs

    def weights(self) -> Weights:
        """Return the definition's weights for this q and k: `weights @ v` equals `output` of every backend."""
        return self.attention.weights(self.q, self.k, **self.options)


@contextmanager
def record_calls(attentions: Sequence[Attention]) -> Iterator[list[AttentionCall]]:
    """Yield a list that collects every `forward` call of these mechanisms, in order, until the block ends.

    Only `forward` is hooked: `step`, and `forward_masked` for packed rows on a GPU, are other methods.
    """
    calls: list[AttentionCall] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        assert isinstance(module, Attention)
        options = dict(zip(("q", "k", "v"), args, strict=False)) | kwargs
        q, k, v = (options.pop(name) for name in ("q", "k", "v"))
        calls.append(AttentionCall(module, q, k, v, options, output))

    # one hook per mechanism: layers may share one, and its calls would be recorded twice
    hooks = [attention.register_forward_hook(record, with_kwargs=True) for attention in dict.fromkeys(attentions)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
