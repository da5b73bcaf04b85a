"""Choose the next token of every row; rows with equal options are chosen from together.

Each row gets the token that it would get alone: a draw depends on the row's own seed and position only.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from qkv.decode import argmax_token
from qkv.decode.sample import Sampler, draw_rows
from qkv.decode.stepper import INVALID_LOGITS, broken_rows, normalize
from qkv.inference.batching.generation import BatchRow, describe


def choose_tokens(logits: Tensor, rows: Sequence[BatchRow | None]) -> int:
    """Give each row its next token, or end it with an error; return how many tokens were chosen.

    Row i of `logits` (rows, vocabulary) is that of `rows[i]`; None is a row that has ended.
    """
    together: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        if row is not None:
            together.setdefault((row.generation.limits.forbidden, _options(row)), []).append(number)
    chosen: dict[int, tuple[int, float]] = {}
    for numbers in together.values():
        own = logits if len(numbers) == logits.shape[0] else logits[torch.tensor(numbers, device=logits.device)]
        members = [row for row in (rows[number] for number in numbers) if row is not None]
        found = _choose(own, members)
        chosen.update((numbers[place], pair) for place, pair in found.items())
    for number in sorted(chosen):
        row = rows[number]
        assert row is not None
        row.take(*chosen[number])
    return len(chosen)


def _options(row: BatchRow) -> Hashable:
    """Return what rows must share to be chosen from together; a chooser that is not known here is called alone."""
    choose = row.generation.choose
    if isinstance(choose, Sampler):
        return (choose.temperature, choose.top_k, choose.top_p)
    return "argmax" if choose is argmax_token else id(row)


def _choose(logits: Tensor, rows: list[BatchRow]) -> dict[int, tuple[int, float]]:
    """Return token and log-probability by place in `rows`, without the rows that end with an error here."""
    forbidden = torch.tensor(rows[0].generation.limits.forbidden, dtype=torch.int64, device=logits.device)
    log_probabilities = normalize(logits, forbidden)
    places = list(range(len(rows)))
    broken = broken_rows(log_probabilities)
    if broken:
        for place in broken:
            rows[place].fail(f"the model returned invalid logits: {INVALID_LOGITS}")
        places = sorted(set(places) - set(broken))
        if not places:
            return {}
        log_probabilities = log_probabilities[torch.tensor(places, device=logits.device)]
    try:
        tokens = _call([rows[place] for place in places], log_probabilities)
        values = log_probabilities.gather(-1, tokens[:, None])[:, 0]
    except Exception as error:  # noqa: BLE001 - the other rows go on
        for place in places:
            rows[place].fail(f"choose raised {describe(error)}")
        return {}
    return dict(zip(places, zip(tokens.tolist(), values.tolist(), strict=True), strict=True))


def _call(rows: list[BatchRow], log_probabilities: Tensor) -> Tensor:
    """Return one token per row."""
    positions = [row.position for row in rows]
    samplers = [row.generation.choose for row in rows if isinstance(row.generation.choose, Sampler)]
    if samplers:
        return draw_rows(samplers, log_probabilities, positions)
    tokens = rows[0].generation.choose(log_probabilities, [0] * len(rows), positions[0])
    if tokens.shape != (len(rows),):
        raise ValueError(f"it must return one token per row, shape ({len(rows)},), got {tuple(tokens.shape)}")
    return tokens
