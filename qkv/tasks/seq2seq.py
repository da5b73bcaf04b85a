"""Train on pairs of sequences: splits and vocabularies, batches, the loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from qkv.data import Buckets, PackedSequences, Pair, Vocabulary
from qkv.errors import QkvError
from qkv.inference.seq2seq import device_of
from qkv.train import Objective, Settings
from qkv.train.objective import Tensors

VALIDATION_BATCH_SIZE = 256

Example = tuple[list[int], list[int]]
"""Source ids and target ids."""


@dataclass(frozen=True)
class Seq2SeqData:
    """Pairs in splits, and the vocabularies of the training split."""

    splits: dict[str, list[Pair]]
    """"train", "valid" and "test"."""
    sources: Vocabulary
    targets: Vocabulary

    @classmethod
    def build(cls, splits: dict[str, list[Pair]]) -> "Seq2SeqData":
        """Build the vocabularies from the training split alone."""
        train = splits["train"]
        targets = Vocabulary.build(target for pair in train for target in pair.targets)
        return cls(splits, Vocabulary.build(pair.source for pair in train), targets)

    def existing_pairs(self, split: str) -> list[Pair]:
        """Return the pairs of a split; raise if it has none."""
        if not self.splits.get(split):
            raise QkvError(f"there are no {split} pairs; pass a file with --test-file")
        return self.splits[split]


class Seq2SeqBatch(NamedTuple):
    """Padded sources and targets, each (batch, time)."""

    source_ids: Tensor
    source_mask: Tensor
    """True where there is a token."""
    decoder_input_ids: Tensor
    """START, then the target."""
    target_ids: Tensor
    """The target, then END."""


class Seq2SeqExamples:
    """Encoded examples, stored so that a batch is one gather: collating one by one would keep a GPU waiting."""

    def __init__(self, examples: list[Example]):
        self._sources = PackedSequences([source for source, _ in examples])
        self._decoder_inputs = PackedSequences([[Vocabulary.START, *target] for _, target in examples])
        self._targets = PackedSequences([[*target, Vocabulary.END] for _, target in examples])

    def batch(self, indices: Sequence[int]) -> Seq2SeqBatch:
        """Return these examples as a padded batch."""
        source_ids, source_mask = self._sources.pad(indices)
        return Seq2SeqBatch(
            source_ids, source_mask, self._decoder_inputs.pad(indices)[0], self._targets.pad(indices)[0]
        )


def hold_out(pairs: list[Pair], count: int) -> tuple[list[Pair], list[Pair]]:
    """Split off the pairs of `count` sources: those of smallest hash, whatever the order of the file."""
    ranked = sorted(pairs, key=lambda pair: blake2b("\0".join(pair.source).encode(), digest_size=8).digest())
    held = {pair.source for pair in ranked[:count]}
    return [pair for pair in pairs if pair.source not in held], [pair for pair in pairs if pair.source in held]


def make_objective(model: nn.Module, data: Seq2SeqData, settings: Settings) -> Objective:
    """Return the objective of fitting the training split; every (source, target) is an example."""
    encoded = encode(data, data.splits["train"])
    buckets = Buckets([(len(source), len(target)) for source, target in encoded], settings.batch_size, settings.seed)
    examples = Seq2SeqExamples(encoded)
    valid = encode(data, data.splits["valid"])
    order = sorted(range(len(valid)), key=lambda index: (len(valid[index][0]), len(valid[index][1])))
    batches = [order[start : start + VALIDATION_BATCH_SIZE] for start in range(0, len(order), VALIDATION_BATCH_SIZE)]

    def validate(model: nn.Module, may_stop: Callable[[], None]) -> float:
        total = tokens = 0.0
        device = device_of(model)
        for batch in batches:
            may_stop()
            tensors = tuple(tensor.to(device) for tensor in collate([valid[index] for index in batch]))
            total += float(loss(model, tensors, 0.0))
            tokens += count_tokens(tensors)
        return total / tokens

    return Objective(
        model=model,
        order=lambda step: buckets.batch(*buckets.locate(step)),
        collate=examples.batch,
        count=count_tokens,
        loss=lambda model, tensors: loss(model, tensors, settings.label_smoothing),
        validate=validate,
    )


def encode(data: Seq2SeqData, pairs: Sequence[Pair]) -> list[Example]:
    """Return the ids of each source with each of its targets."""
    return [
        (data.sources.encode(pair.source), data.targets.encode(target)) for pair in pairs for target in pair.targets
    ]


def collate(examples: list[Example]) -> Seq2SeqBatch:
    """Return all of these examples as one batch."""
    return Seq2SeqExamples(examples).batch(range(len(examples)))


def count_tokens(tensors: Tensors) -> int:
    """Return the number of target tokens, END included."""
    return int((Seq2SeqBatch(*tensors).target_ids != Vocabulary.PAD).sum())


def loss(model: nn.Module, tensors: Tensors, label_smoothing: float) -> Tensor:
    """Return the cross entropy, summed over the target tokens."""
    batch = Seq2SeqBatch(*tensors)
    logits = model(batch.source_ids, batch.decoder_input_ids, batch.source_mask)
    return cross_entropy(logits, batch.target_ids, label_smoothing)


def cross_entropy(logits: Tensor, target_ids: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross entropy of logits (batch, time, tokens), summed over the target tokens."""
    return functional.cross_entropy(
        logits.flatten(0, 1),
        target_ids.flatten(),
        ignore_index=Vocabulary.PAD,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
