"""Sources as people type them, in the tokens that a model of strings knows: one rule for whoever reads some."""

from collections.abc import Collection, Sequence

from torch import nn

from qkv.models import Ensemble, Recurrent


def split_source(text: str, unit: str) -> list[str]:
    """The "characters" or the "words" of a text, without the blanks around it."""
    return list(text.strip()) if unit == "characters" else text.split()


def in_known_case(tokens: Sequence[str], known: Collection[str]) -> list[str]:
    """The tokens as the model knows them: one that it never saw, but saw in the other case, is taken as that.

    A token that it knows stays as it is typed, and one that is unknown in either case too.
    """
    return [token if token in known else _other_case(token, known) for token in tokens]


def longest_source(model: nn.Module) -> int | None:
    """The most tokens that a model takes of a source; None if there is no most.

    `max_length` bounds what a recurrent network writes, not what it reads.
    """
    if isinstance(model, Ensemble):
        found = [most for member in model.members if (most := longest_source(member)) is not None]
        return min(found, default=None)
    return None if isinstance(model, Recurrent) else int(model.config.max_length)  # type: ignore[union-attr, arg-type]


def _other_case(token: str, known: Collection[str]) -> str:
    return next((other for other in (token.lower(), token.upper()) if other in known), token)
