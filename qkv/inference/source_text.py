"""Sources as people type them, in the tokens that a sequence-to-sequence model knows."""

from collections.abc import Collection, Sequence

from torch import nn

from qkv.models import Ensemble, Recurrent


def in_known_case(tokens: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the tokens in the case that the model knows.

    An unknown token that is known in the other case is replaced by that. All other tokens stay as typed.
    """
    return [token if token in known else _other_case(token, known) for token in tokens]


def longest_source(model: nn.Module) -> int | None:
    """Return the most source tokens that a model takes; None: no limit.

    `max_length` limits what a recurrent network writes, not what it reads.
    """
    if isinstance(model, Ensemble):
        limits = [limit for member in model.members if (limit := longest_source(member)) is not None]
        return min(limits, default=None)
    return None if isinstance(model, Recurrent) else int(model.config.max_length)  # type: ignore[union-attr, arg-type]


def _other_case(token: str, known: Collection[str]) -> str:
    return next((other for other in (token.lower(), token.upper()) if other in known), token)
