"""Streaming generation: one sequence, token by token."""

from collections.abc import Iterator

import torch

from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.single_path import TokenChooser
from qkv.decode.stepper import Stepper


def stream(
    model: Decodable[S], inputs: Inputs, limits: SearchLimits, choose: TokenChooser
) -> Iterator[tuple[int, float]]:
    """Yield each token, END included, with its log-probability as soon as it is chosen; `inputs` is one row.

    `choose` is `argmax_token` or a `sampler`; the tokens equal those of `greedy` and `sample`. Only the model's state
    can grow, so with a state of constant size any number of tokens takes constant memory.
    """
    if inputs.shape[0] != 1:
        raise ValueError(f"inputs must be one row, got {inputs.shape[0]}")
    with torch.inference_mode():
        stepper = Stepper(model, inputs, None, limits)
    token = limits.start
    for position in range(limits.max_length):
        with torch.inference_mode():  # not around the yield: the caller may need gradients
            log_probabilities = stepper.step([0], [token])
            token = int(choose(log_probabilities, [0], position))
            log_probability = float(log_probabilities[0, token])
        yield token, log_probability
        if token == limits.end:
            return
