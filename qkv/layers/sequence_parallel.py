"""Sequence parallel for models: each process computes its part of every sequence.

    parallelize_sequence(model, SequenceGroup())
    logits = model(tokens_of_this_process, packing=packing_of_this_process)

The parameters and their names stay those of one process. The gradient of a parameter is the sum over the processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor, nn

from qkv.attention import SequenceGroup
from qkv.attention.parallel.group import SequencePart
from qkv.layers.multi_head import MultiHead


class SequenceModel(nn.Module):
    """A model whose `forward` can take one part of each sequence."""

    sequence_group: SequenceGroup | None = None
    """Processes that share the tokens of each sequence; None: this process has all of them."""

    def locate(self, tokens: Tensor, **given: object) -> SequencePart | None:
        """Return the part that these tokens (batch, time) are; None if they are whole sequences.

        `given` are the arguments that all processes must give or leave out together.
        """
        group = self.sequence_group
        return None if group is None else group.locate(tokens.shape[1], tokens.device, **given)


def parallelize_sequence(model: nn.Module, group: SequenceGroup | dist.ProcessGroup | None = None) -> None:
    """Make `forward` of this model take the tokens of one part, in place; decoding stays that of whole sequences.

    All processes of the group (default: all processes) must call `forward`, and its backward, together. Either all
    give a mask or none does, and likewise a packing.
    """
    splittable = require_splittable(model)
    splittable.sequence_group = group if isinstance(group, SequenceGroup) else SequenceGroup(group)


@contextmanager
def whole_sequences(model: nn.Module) -> Iterator[None]:
    """Let `forward` of this model take whole sequences, for a validation by each process alone."""
    models = [part for part in model.modules() if isinstance(part, SequenceModel)]
    groups = [part.sequence_group for part in models]
    try:
        for part in models:
            part.sequence_group = None
        yield
    finally:
        for part, group in zip(models, groups, strict=True):
            part.sequence_group = group


def require_splittable(model: nn.Module) -> SequenceModel:
    """Return the model, or raise an error that names the part that needs whole sequences."""
    if not isinstance(model, SequenceModel):
        raise ValueError(
            f"{type(model).__name__} cannot split its sequences over processes: only the families decoder and encoder "
            "can; train it with mesh axis data or shard instead"
        )
    for name, part in model.named_modules():
        if isinstance(part, MultiHead) and not part.attention.splits_sequences:
            raise ValueError(
                f"{name} cannot split its sequences over processes: attention kind {part.attention.kind!r} has no "
                "`summarize`"
            )
    return model
