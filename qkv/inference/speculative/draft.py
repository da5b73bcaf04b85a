"""The interface of drafts: what proposes the next tokens of a sequence."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Pick = Callable[[Tensor, int], tuple[int, Tensor | None]]
"""(logits [vocabulary] after a token, number of the proposed token) -> token by the rule of the search, and the
unnormalized probabilities it was drawn from; None: it was certain"""


@dataclass(frozen=True)
class Proposal:
    """Tokens that may come next."""

    tokens: Sequence[int] = ()
    weights: Sequence[Tensor | None] = ()
    """For each token the unnormalized probabilities [vocabulary] it was drawn from; None: it was certain."""

    def until(self, end: int) -> "Proposal":
        """Return the proposal up to the first end token."""
        tokens = list(self.tokens)
        kept = tokens.index(end) + 1 if end in tokens else len(tokens)
        return Proposal(tokens[:kept], self.weights[:kept])


class Draft(ABC):
    """Proposes the next tokens. A wrong proposal costs time, never the result.

    It may remember the sequence between calls, so that each generation that runs at the same time needs its own.
    """

    @abstractmethod
    def propose(self, ids: Sequence[int], count: int, pick: Pick) -> Proposal:
        """Return up to `count` tokens that may follow `ids`: the prompt and all tokens so far.

        A token must be certain, or be drawn from its weights by nothing but `pick`.
        """
