"""The undo log of a layer: what the last step read, so that some of its tokens can be taken back.

    S' = S + sum over the new tokens        S' without its last tokens = S + sum over the others

A sum cannot be taken back, but the state before the step is still there, and so are the projected queries, keys and
values of the new tokens. Adding the tokens that stay to S again costs no projection and no feed-forward layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.attention import Attention, State
from qkv.shapes import Keys, Queries, Values


@dataclass(frozen=True)
class Convolved:
    """Inputs of a convolution: those before the step, which are its state, and the new ones."""

    before: Tensor
    new: Tensor
    """(batch, time, channels)"""

    def state_after(self, tokens: int) -> Tensor:
        """Return the state after this many of the new tokens."""
        return torch.cat((self.before, self.new[:, :tokens]), 1)[:, tokens:]


@dataclass(frozen=True)
class UndoLog:
    """The inputs of the last step of one multi-head layer."""

    mechanism: Attention
    before: State
    """The state that the step continued."""
    q: Queries
    k: Keys
    v: Values
    modifiers: Mapping[str, Tensor]
    convolved: Convolved | None

    @property
    def tokens(self) -> int:
        """Number of tokens of the step, all of which can be taken back."""
        return self.k.shape[2]

    def state_after(self, tokens: int) -> State:
        """Return the state of the mechanism after the first `tokens` of the step."""
        if not tokens:
            return self.before
        keys = self.before.addressable_keys + tokens
        modifiers = {name: _first(name, x, tokens, keys) for name, x in self.modifiers.items()}
        q, k, v = (x[:, :, :tokens] for x in (self.q, self.k, self.v))
        return self.mechanism.step(q, k, v, self.before, **modifiers)[1]


def _first(name: str, x: Tensor, tokens: int, keys: int) -> Tensor:
    """Return a modifier for the first tokens of a step, which see this many keys."""
    if name == "bias":
        return x[:, :, :tokens, :keys]
    if name == "starts":
        return x[:, :tokens]
    return x if x.dim() == 1 else x[:, :, :tokens]  # a decay of shape (heads,) is the same for every token
