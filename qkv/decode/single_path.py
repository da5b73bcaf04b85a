"""Single-path search: one path per source, chosen token by token."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis, make_hypothesis
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.stepper import Stepper
from qkv.shapes import Mask

TokenChooser = Callable[[Tensor, list[int], int], Tensor]
"""(log-probabilities [rows, vocabulary], source of each row, position) -> one token per row"""


def search_single_path(
    model: Decodable[S], inputs: Inputs, mask: Mask | None, limits: SearchLimits, choose: TokenChooser
) -> list[Hypothesis]:
    """Return the path that `choose` takes from each source; rows that reached END are dropped from the batch."""
    batch = inputs.shape[0]
    paths: list[list[int]] = [[] for _ in range(batch)]
    totals = [0.0] * batch
    sources = parents = list(range(batch))
    given: list[int] | Tensor = [limits.start] * batch
    with torch.inference_mode():
        stepper = Stepper(model, inputs, mask, limits)
        for position in range(limits.max_length):
            if not sources:
                break
            log_probabilities = stepper.step(parents, given)
            chosen = choose(log_probabilities, sources, position)
            own = log_probabilities.gather(-1, chosen.unsqueeze(-1)).tolist()
            tokens = chosen.tolist()
            for source, token, (log_probability,) in zip(sources, tokens, own, strict=True):
                paths[source].append(token)
                totals[source] += log_probability
            parents = [row for row, token in enumerate(tokens) if token != limits.end]
            if len(parents) == len(tokens):
                given = chosen
            else:
                sources = [sources[row] for row in parents]
                given = [tokens[row] for row in parents]
    return [make_hypothesis(path, total, limits.end) for path, total in zip(paths, totals, strict=True)]
