"""One text, token by token, as it is made."""

from collections.abc import Iterator

import torch

from qkv.decode.limits import Limits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.single_path import Choose
from qkv.decode.stepper import Stepper


def stream(model: Decodable[S], inputs: Inputs, limits: Limits, choose: Choose) -> Iterator[tuple[int, float]]:
    """Each token with its log-probability, END too, the moment it is chosen; `inputs` is one row.

    `choose` is `likeliest` or what `drawing` gives: the tokens are those of `greedy` and of `sample`. Nothing grows
    but what the model itself remembers, so with a constant state any number of tokens takes the same memory.
    """
    if inputs.shape[0] != 1:
        raise ValueError(f"inputs must be one row, got {inputs.shape[0]}")
    with torch.inference_mode():
        stepper = Stepper(model, inputs, None, limits)
    token = limits.start
    for position in range(limits.max_length):
        with torch.inference_mode():  # not around the yield: whoever takes the token may want gradients
            log_probabilities = stepper.step([0], [token])
            token = int(choose(log_probabilities, [0], position))
            own = float(log_probabilities[0, token])
        yield token, own
        if token == limits.end:
            return
