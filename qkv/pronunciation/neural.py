"""Grapheme-to-phoneme prediction with a trained network. Torch is imported when a model is opened.

If the folder has a joint n-gram model, it rescores the n-best lists of a beam search.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import QkvError
from qkv.pronunciation.answer import Pronunciation
from qkv.pronunciation.bundled import JOINT_FILE

if TYPE_CHECKING:
    from torch import nn

    from qkv.decode import Hypothesis
    from qkv.pronunciation.joint_ngram import JointNGram
    from qkv.tasks import Seq2SeqTask

BATCH_SIZE = 128
"""Words per batch; words of similar length share a batch."""
MAX_LETTERS = 256
"""Longest word for a model without a limit: each letter takes a step."""


class NeuralG2P:
    """The model of a run folder, without a dictionary."""

    def __init__(self, model: "nn.Module", task: "Seq2SeqTask", joint: Path | None = None):
        self.model = model
        self.task = task
        self._joint_file = joint
        self._letters = set(task.data.sources.tokens)

    @classmethod
    def open(cls, folder: Path | str, *others: Path | str, joint: Path | str | bool = True) -> "NeuralG2P":
        """Load a run of task `pronounce`, or of any task from letters to phones; several runs become an ensemble.

        `joint`: whether to use the joint n-gram model of the folder, if it has one, or the path of another. The weight
        of a folder's own was fitted to its model alone, so an ensemble uses one only if a path is given.
        """
        from qkv import runs, tasks

        _, task, model = runs.load(Path(folder), *map(Path, others))
        if not isinstance(task, tasks.Seq2SeqTask) or not _maps_letters_to_phones(task):
            raise QkvError(f"a run of task {task.kind!r} with these settings does not map letters to phones", folder)
        own = Path(folder) / JOINT_FILE
        default = own if joint and not others and own.exists() else None
        return cls(model.eval(), task, default if isinstance(joint, bool) else Path(joint))

    @property
    def has_joint(self) -> bool:
        """Whether a joint n-gram model rescores the results of a beam search."""
        return self._joint_file is not None

    @cached_property
    def joint(self) -> "JointNGram | None":
        """The joint n-gram model, read when the first beam search needs it."""
        from qkv.pronunciation.joint_ngram import JointNGram

        return None if self._joint_file is None else JointNGram.read(self._joint_file)

    @property
    def max_letters(self) -> int:
        """Letters in the longest word that the model reads."""
        from qkv.inference.source_text import longest_source

        limit = longest_source(self.model)
        return MAX_LETTERS if limit is None else limit

    def knows_letters(self, word: str) -> bool:
        """Return whether the model has seen each letter, in either case."""
        return self._letters.issuperset(self._to_letters(word))

    def unsupported_reason(self, word: str) -> str | None:
        """Return why the model cannot take this word; None if it can."""
        if len(word) > self.max_letters:
            return f"it has {len(word):,} letters, and the model takes {self.max_letters}"
        unknown = sorted(set(self._to_letters(word)) - self._letters)
        shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        return f"it has {shown}, which the model has never seen" if unknown or not word else None

    def predict(
        self,
        words: Sequence[str],
        best: int = 1,
        beams: int = 1,
        length_penalty: float = 0.0,
        batch_size: int = BATCH_SIZE,
    ) -> list[tuple[Pronunciation, ...]]:
        """Return the `best` pronunciations of each word, in the order of `words`."""
        from qkv.inference import Search, predict_targets

        width = max(beams, best)
        joint = self.joint if width > 1 else None
        search = Search(beams=width, n_best=best if joint is None else width, length_penalty=length_penalty)
        sources = [self._to_letters(word) for word in words]
        vocabulary = self.task.data.sources
        found = predict_targets(self._fast_model, vocabulary, sources, search, batch_size, self._num_threads)
        if joint is not None:
            found = [self._rescore(joint, *one)[:best] for one in zip(sources, found, strict=True)]
        return [self._to_pronunciations(hypotheses) for hypotheses in found]

    def _rescore(self, joint: "JointNGram", letters: list[str], found: "list[Hypothesis]") -> "list[Hypothesis]":
        from qkv.pronunciation.rescore import rescore

        phones = [self.task.data.targets.decode(one.tokens) for one in found]
        return rescore(joint, "".join(letters), found, phones)

    @property
    def _num_threads(self) -> int | None:
        """Torch's thread count, if the model is safe to call concurrently."""
        import torch

        return None if self._fast_model is self.model else torch.get_num_threads()

    @cached_property
    def _fast_model(self) -> "nn.Module":
        """The fused model on a CPU, if the family has one; else the model itself."""
        from qkv.models.fast.fused import FusedEncoderDecoder, can_fuse

        on_cpu = next(self.model.parameters()).device.type == "cpu"
        return FusedEncoderDecoder(self.model) if on_cpu and can_fuse(self.model) else self.model

    def _to_pronunciations(self, hypotheses: "list[Hypothesis]") -> tuple[Pronunciation, ...]:
        """Convert hypotheses in their order, without those that have no phones."""
        decode = self.task.data.targets.decode
        found = (Pronunciation(tuple(decode(one.tokens)), math.exp(one.log_probability)) for one in hypotheses)
        return tuple(one for one in found if one.phones)

    def _to_letters(self, word: str) -> list[str]:
        from qkv.inference.source_text import in_known_case

        return in_known_case(word, self._letters)


def _maps_letters_to_phones(task: "Seq2SeqTask") -> bool:
    return task.settings.source == "characters" and task.settings.target == "words"
