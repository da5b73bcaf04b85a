"""Random sequences for models: padded at the end or at the start, with their mask."""

import torch


def padded(rows, longest, tokens, *, first=False):
    """Ids from 4 on, rows of different lengths, the first of full length; padding (0) at the end, or `first`."""
    lengths = torch.randint(1, longest + 1, (rows, 1))
    lengths[0] = longest
    mask = torch.arange(longest) < lengths
    if first:
        mask = mask.flip(1)
    return torch.randint(4, tokens, (rows, longest)).masked_fill(~mask, 0), mask


def walk(model, state, tokens):
    """Logits (batch, time, tokens) token by token."""
    logits = []
    for column in tokens.unbind(1):
        out, state = model.step(column, state)
        logits.append(out)
    return torch.stack(logits, 1)
