"""Training in stages: ranges of the steps of one training loop, so that every stage is saved and resumed by it."""

from dataclasses import replace

from qkv.train import Settings
from qkv.train.settings import cosine_schedule

FIRST_SHARE = 0.9
"""Share of the steps of the first stage; the others share the rest equally."""


def stage_ends(steps: int, stages: int) -> list[int]:
    """Return the step at which each stage ends."""
    if stages == 1:
        return [steps]
    first = max(1, min(round(FIRST_SHARE * steps), steps - stages + 1))  # at least one step for each
    return [first + (steps - first) * stage // (stages - 1) for stage in range(stages)]


def stage_of(step: int, steps: int | None, stages: int) -> int:
    """Return the stage of a step."""
    if stages == 1 or steps is None:
        return 0
    return sum(step >= end for end in stage_ends(steps, stages)[:-1])


def staged_schedule(settings: Settings, step: int, stages: int) -> float:
    """Return the learning rate: warmup and cosine start again in every stage."""
    if stages == 1 or settings.steps is None:
        return cosine_schedule(settings, step)
    ends = [0, *stage_ends(settings.steps, stages)]
    stage = stage_of(step, settings.steps, stages)
    length = max(1, ends[stage + 1] - ends[stage])
    own = replace(settings, steps=length, warmup=min(settings.warmup, length // 10))
    return cosine_schedule(own, step - ends[stage])
