"""Alignment: the source tokens that a model attended to while it generated each token.

    weights[i][j] = mean over blocks and heads of attention.weights(q, k)[i, j]

with the q and k of a real pass over the target: row i generated target token i (the last row
generated END), column j is source token j. No fast form ever holds this matrix; it is computed from the
definition, and `weights @ v` equals the output of the fast form.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from qkv.attention import Attention
from qkv.data import Vocabulary
from qkv.explain.record_calls import AttentionCall, record_calls
from qkv.layers import DecoderBlock
from qkv.models import EncoderDecoder, Recurrent
from qkv.shapes import Weights

Matrix = list[list[float]]


@dataclass(frozen=True)
class Alignment:
    """(target tokens and END) x (source tokens), as plain floats.

    Each row sums to 1, except for kinds that do not normalize.
    """

    weights: Matrix
    """Mean over blocks and heads."""
    blocks: list[list[Matrix]]
    """`blocks[b][h]`: weights of head h in decoder block b; a recurrent model has one block of one head."""


def alignment(model: nn.Module, source: Sequence[int], target: Sequence[int]) -> Alignment:
    """Return the alignment of `target` and END with `source`; ids without START and END.

    The target need not be the model's own answer; a wrong one works too.
    """
    attentions = _cross_attentions(model)
    check_ids("source", source, model.source_embedding)
    check_ids("target", target, model.target_embedding)
    if not source:
        raise ValueError("source must have at least one token, got 0")
    device = next(model.parameters()).device
    with torch.no_grad(), eval_mode(model), record_calls(attentions) as calls:
        model(torch.tensor([source], device=device), torch.tensor([[Vocabulary.START, *target]], device=device))
        blocks = torch.stack([_weights_of(attention, calls) for attention in attentions])
    return Alignment(blocks.mean((0, 1)).tolist(), blocks.tolist())


def _weights_of(attention: Attention, calls: list[AttentionCall]) -> Weights:
    """Return (heads, targets, sources); a recurrent decoder attends once per token, a Transformer block once."""
    return torch.cat([call.weights() for call in calls if call.attention is attention], 2)[0]


def _cross_attentions(model: nn.Module) -> list[Attention]:
    """Return the mechanisms that attend to the source, one per decoder block."""
    if isinstance(model, EncoderDecoder):
        crosses = [block.cross for block in model.decoder if isinstance(block, DecoderBlock)]
        return [cross.attention for cross in crosses if cross is not None]
    if not isinstance(model, Recurrent):
        raise TypeError(
            f"model must be an EncoderDecoder or a Recurrent, which attend to a source, got a {type(model).__name__}"
        )
    if model.attention is None:
        raise ValueError(
            'model has attention="none": it never attends to the source and has no alignment; '
            'train one with attention="additive" or "softmax"'
        )
    return [model.attention]


def check_ids(name: str, ids: Sequence[int], table: object) -> None:
    """Raise ValueError for ids outside an embedding table."""
    assert isinstance(table, nn.Embedding)
    for index, token in enumerate(ids):
        if not 0 <= token < table.num_embeddings:
            raise ValueError(f"{name}[{index}] is {token}, but the model's ids are 0 to {table.num_embeddings - 1}")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside the block; restore every module's mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
