"""Learning from other models: what they believe of every token, and what they say of words that nobody labeled.

    loss = (1 - trust) cross entropy with the targets + trust * cross entropy with the mean belief of the teachers

A belief says which other answers would have been nearly right, which a target cannot: a small model learns more
from it. Teachers read each example once, before training; then only their beliefs are kept, in 16 bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.data import Pair, Vocabulary
from qkv.inference.source_text import longest_source
from qkv.models import Ensemble
from qkv.runs.load import restore
from qkv.storage import QkvError
from qkv.tasks.base import Task
from qkv.tasks.seq2seq import Example, Search, Strings, answer, collate, cross_entropy, device_of, encode, make_objective
from qkv.train import Settings, Objective
from qkv.train.objective import Tensors

TOGETHER = {"cpu": 256, "cuda": 1024}
"""Examples that teachers read at once, by device."""


def teachers_of(folders: str, job: Task) -> Ensemble:
    """The trained models of these run folders, separated by commas; they must know the tokens of the job."""
    _, theirs, model = restore(*(Path(name.strip()) for name in folders.split(",")))
    if theirs.vocabulary() != job.vocabulary():
        raise QkvError("teachers must have the tokens of their pupil, but these runs have others", folders)
    teachers = model if isinstance(model, Ensemble) else Ensemble([model])
    return teachers.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def label(teachers: Ensemble, strings: Strings, sources: Sequence[tuple[str, ...]]) -> list[Pair]:
    """What the teachers say of these sources, greedily; what they cannot read, or find no end for, is left out."""
    known, longest = set(strings.sources.tokens), longest_source(teachers) or math.inf
    readable = [source for source in sources if 0 < len(source) <= longest and known.issuperset(source)]
    said = answer(teachers, strings, readable, Search(), TOGETHER[device_of(teachers).type])
    return [
        Pair(source, (tuple(strings.targets.decode(best[0].tokens)),))
        for source, best in zip(readable, said, strict=True)
        if best[0].finished and best[0].tokens
    ]


class Beliefs(nn.Module):
    """What the teachers believe of each token of each example: rows of numbers that sum to 1."""

    table: Tensor
    starts: Tensor

    def __init__(self, teachers: Ensemble, examples: Sequence[Example]):
        super().__init__()
        # END is believed in, too
        lengths = torch.tensor([len(target) + 1 for _, target in examples])
        starts = lengths.cumsum(0) - lengths
        width = self._believe(teachers, [examples[0]])[1].shape[-1]
        table = torch.empty(int(lengths.sum()), width, dtype=torch.float16)
        order = sorted(range(len(examples)), key=lambda number: (len(examples[number][0]), lengths[number].item()))
        together = TOGETHER[device_of(teachers).type]
        for start in range(0, len(order), together):
            chunk = order[start : start + together]
            here, believed = self._believe(teachers, [examples[number] for number in chunk])
            at = (starts[chunk][:, None] + torch.arange(here.shape[1]))[here]
            table[at] = believed[here].half()
        # no part of any model: a run folder need not hold what its teachers believe
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("starts", starts, persistent=False)

    @torch.inference_mode()
    def _believe(self, teachers: Ensemble, examples: list[Example]) -> tuple[Tensor, Tensor]:
        """Where there are tokens, and the probabilities there, on the CPU."""
        device = device_of(teachers)
        source, mask, given, wanted = collate(examples)
        found = teachers(source.to(device), given.to(device), mask.to(device))
        return wanted != Vocabulary.PAD, found.exp().cpu()

    def forward(self, numbers: Tensor, length: int) -> Tensor:
        """(examples, length, tokens): the beliefs of these examples; what stands beyond an end means nothing."""
        places = self.starts[numbers][:, None] + torch.arange(length, device=numbers.device)
        return self.table[places.clamp(max=len(self.table) - 1)]


def taught(strings: Strings, teachers: Ensemble, trust: float) -> Callable[[nn.Module, Settings], Objective]:
    """The job of fitting the training part, and with the share `trust` of the loss what the teachers believe of it."""
    beliefs = Beliefs(teachers, encode(strings, strings.parts["train"]))

    def task(model: nn.Module, settings: Settings) -> Objective:
        plain = make_objective(model, strings, settings)

        def loss(model: nn.Module, tensors: Tensors) -> Tensor:
            source, mask, given, wanted, numbers = tensors
            logits = model(source, given, mask)
            believed = _disagreement(logits, wanted, beliefs(numbers, wanted.shape[1]))
            return (1 - trust) * cross_entropy(logits, wanted, settings.label_smoothing) + trust * believed

        def numbered(ids: list[int]) -> Tensors:
            return *plain.collate(ids), torch.tensor(ids)

        return replace(plain, collate=numbered, loss=loss, beside=(beliefs,))

    return task


def _disagreement(logits: Tensor, wanted: Tensor, believed: Tensor) -> Tensor:
    """Cross entropy with the beliefs, summed over the target tokens."""
    lost = -(believed * logits.float().log_softmax(-1)).sum(-1)
    return lost.masked_fill(wanted == Vocabulary.PAD, 0.0).sum()
