"""Where a model looked in the source while it wrote each token.

    weights[i][j] = mean over blocks and heads of attention.weights(q, k)[i, j]

with the q and k of a real pass over the target: row i is what wrote target token i (the last row
wrote END), column j is source token j. No fast form ever holds this matrix; it is computed from the
definition, and `weights @ v` is what the fast form returned.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import Attention
from qkv.data import Vocabulary
from qkv.explain.record_calls import watch
from qkv.layers import DecoderBlock
from qkv.models import EncoderDecoder, Recurrent

Matrix = list[list[float]]


@dataclass(frozen=True)
class Alignment:
    """(target tokens and END) x (source tokens), plain numbers.

    Each row sums to 1, except for kinds that sum instead of averaging: there it may be any number.
    """

    weights: Matrix
    """The mean over blocks and heads."""
    blocks: list[list[Matrix]]
    """blocks[b][h]: what head h of decoder block b saw; a recurrent model has one block of one head."""


def alignment(model: nn.Module, source: Sequence[int], target: Sequence[int]) -> Alignment:
    """Where the model looks while it writes `target` and END, given `source`; ids without START and END.

    The model need not agree with the target: any answer can be asked about, a wrong one too.
    """
    looking = _looking(model)
    check_ids("source", source, model.read)
    check_ids("target", target, model.write)
    if not source:
        raise ValueError("source must have at least one token, got none; there is nothing to look at")
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model), watch(looking) as calls:
        model(torch.tensor([source], device=device), torch.tensor([[Vocabulary.START, *target]], device=device))
        # a recurrent decoder looks once a token, a Transformer's blocks once for all of them
        blocks = torch.stack(
            [torch.cat([call.weights() for call in calls if call.attention is one], 2)[0] for one in looking]
        )
    return Alignment(blocks.mean((0, 1)).tolist(), blocks.tolist())


def _looking(model: nn.Module) -> list[Attention]:
    """The mechanisms that look at the source, one per decoder block."""
    if isinstance(model, EncoderDecoder):
        crosses = [block.cross for block in model.decoder if isinstance(block, DecoderBlock)]
        return [cross.attention for cross in crosses if cross is not None]
    if not isinstance(model, Recurrent):
        raise TypeError(
            f"model must be an EncoderDecoder or a Recurrent, which look at a source, got a {type(model).__name__}"
        )
    if model.attention is None:
        raise ValueError(
            'model has attention="none": it never looks at the source, so there is no alignment; '
            'train one with attention="additive" or "softmax"'
        )
    return [model.attention]


def check_ids(name: str, ids: Sequence[int], table: object) -> None:
    """Refuse ids that a table of embeddings does not have."""
    assert isinstance(table, nn.Embedding)
    for place, number in enumerate(ids):
        if not 0 <= number < table.num_embeddings:
            raise ValueError(f"{name}[{place}] is {number}, but the model's ids are 0 to {table.num_embeddings - 1}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout for a while; every module goes back to the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
