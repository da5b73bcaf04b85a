"""Distillation: learn the teachers' probabilities of every token, and their predictions for unlabeled sources.

    loss = (1 - trust) cross entropy with the targets + trust * cross entropy with the teachers' mean probabilities

The teachers' probabilities show which other answers would have been nearly right, so a small model learns more from
them than from targets alone. Teachers read each example once, before training; their probabilities are kept in float16.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.data import Pair, Vocabulary
from qkv.inference.seq2seq import Search, device_of, predict_targets
from qkv.inference.source_text import longest_source
from qkv.models import Ensemble
from qkv.tasks.seq2seq import (
    Example,
    Seq2SeqBatch,
    Seq2SeqData,
    collate,
    count_tokens,
    cross_entropy,
    encode,
    make_objective,
)
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

TEACHER_BATCH_SIZE = {"cpu": 256, "cuda": 1024}
"""Examples per forward pass of the teachers, by device type."""


class DistillationBatch(NamedTuple):
    """A batch of pairs and the indices of its examples."""

    source_ids: Tensor
    source_mask: Tensor
    decoder_input_ids: Tensor
    target_ids: Tensor
    indices: Tensor


def as_teachers(model: nn.Module) -> Ensemble:
    """Return the model as a frozen ensemble on the fastest device."""
    teachers = model if isinstance(model, Ensemble) else Ensemble([model])
    return teachers.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def pseudo_label(teachers: Ensemble, data: Seq2SeqData, sources: Sequence[tuple[str, ...]]) -> list[Pair]:
    """Return the teachers' greedy predictions as pairs; skip sources they cannot read or do not finish."""
    known, longest = set(data.sources.tokens), longest_source(teachers) or math.inf
    readable = [source for source in sources if 0 < len(source) <= longest and known.issuperset(source)]
    batch_size = TEACHER_BATCH_SIZE[device_of(teachers).type]
    found = predict_targets(teachers, data.sources, readable, Search(), batch_size)
    return [
        Pair(source, (tuple(data.targets.decode(best[0].tokens)),))
        for source, best in zip(readable, found, strict=True)
        if best[0].finished and best[0].tokens
    ]


class TeacherProbabilities(nn.Module):
    """The teachers' probabilities of each token of each example: rows that sum to 1."""

    table: Tensor
    starts: Tensor

    def __init__(self, teachers: Ensemble, examples: Sequence[Example]):
        super().__init__()
        lengths = torch.tensor([len(target) + 1 for _, target in examples])  # END has a row, too
        starts = lengths.cumsum(0) - lengths
        width = self._probabilities(teachers, [examples[0]])[1].shape[-1]
        table = torch.empty(int(lengths.sum()), width, dtype=torch.float16)
        order = sorted(range(len(examples)), key=lambda index: (len(examples[index][0]), lengths[index].item()))
        batch_size = TEACHER_BATCH_SIZE[device_of(teachers).type]
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            real, probabilities = self._probabilities(teachers, [examples[index] for index in batch])
            rows = (starts[batch][:, None] + torch.arange(real.shape[1]))[real]
            table[rows] = probabilities[real].half()
        # not part of any model: a run folder need not hold them
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("starts", starts, persistent=False)

    @torch.inference_mode()
    def _probabilities(self, teachers: Ensemble, examples: list[Example]) -> tuple[Tensor, Tensor]:
        """Return which positions hold tokens, and the probabilities there, on the CPU."""
        device = device_of(teachers)
        batch = collate(examples)
        found = teachers(batch.source_ids.to(device), batch.decoder_input_ids.to(device), batch.source_mask.to(device))
        return batch.target_ids != Vocabulary.PAD, found.exp().cpu()

    def forward(self, indices: Tensor, length: int) -> Tensor:
        """Return (examples, length, tokens) for these examples; rows beyond an end mean nothing."""
        rows = self.starts[indices][:, None] + torch.arange(length, device=indices.device)
        return self.table[rows.clamp(max=len(self.table) - 1)]


def make_distillation_objective(
    model: nn.Module, data: Seq2SeqData, settings: Settings, teachers: Ensemble, trust: float
) -> Objective:
    """Return the objective of fitting the training split, with the share `trust` of the loss from the teachers."""
    probabilities = TeacherProbabilities(teachers, encode(data, data.splits["train"]))
    plain = make_objective(model, data, settings)

    def loss(model: nn.Module, tensors: Tensors) -> Tensor:
        batch = DistillationBatch(*tensors)
        logits = model(batch.source_ids, batch.decoder_input_ids, batch.source_mask)
        soft = _soft_cross_entropy(logits, batch.target_ids, probabilities(batch.indices, batch.target_ids.shape[1]))
        return (1 - trust) * cross_entropy(logits, batch.target_ids, settings.label_smoothing) + trust * soft

    def collate_with_indices(ids: list[int]) -> DistillationBatch:
        return DistillationBatch(*Seq2SeqBatch(*plain.collate(ids)), torch.tensor(ids))

    return replace(
        plain,
        collate=collate_with_indices,
        count=lambda tensors: count_tokens(tensors[:-1]),
        loss=loss,
        frozen=(probabilities,),
    )


def _soft_cross_entropy(logits: Tensor, target_ids: Tensor, probabilities: Tensor) -> Tensor:
    """Return the cross entropy with these probabilities, summed over the target tokens."""
    losses = -(probabilities * logits.float().log_softmax(-1)).sum(-1)
    return losses.masked_fill(target_ids == Vocabulary.PAD, 0.0).sum()
