"""A trained model that says words: its letters, its phones, its n-best lists. Torch is loaded when one is opened.

Where its folder has a joint model, that one has a say in the order of a beam's answers.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.pronunciation.answer import Pronunciation
from qkv.pronunciation.bundled import JOINT
from qkv.storage import QkvError

if TYPE_CHECKING:
    from torch import nn

    from qkv.decode import Hypothesis
    from qkv.pronunciation.joint_ngram import Joint
    from qkv.tasks import Seq2SeqTask

BATCH = 128
"""Words of like length that are decoded together."""
LONGEST_WORD = 256
"""Letters, for a model that reads any number: what is longer is no word, and each letter would take a step."""


class Network:
    """The model of a run folder, alone: no dictionary stands before it."""

    def __init__(self, model: "nn.Module", job: "Seq2SeqTask", joint: Path | None = None):
        self.model = model
        self.job = job
        self._joint = joint
        self._letters = set(job.strings.sources.tokens)

    @classmethod
    def open(cls, folder: Path | str, *others: Path | str, joint: Path | str | bool = True) -> "Network":
        """The model of a run of task `pronounce`, or of any task from letters to phones; or the mean of several.

        `joint`: whether to take the joint model of the folder, if there is one, or the file of another. That of a
        folder was weighed for its model alone, so several as one have none unless a file is named.
        """
        from qkv import tasks

        _, job, model = tasks.restore(Path(folder), *map(Path, others))
        if (
            not isinstance(job, tasks.Seq2SeqTask)
            or job.settings.source != "characters"
            or job.settings.target != "words"
        ):
            raise QkvError(f"a run of task {job.kind!r} with these settings does not go from letters to phones", folder)
        own = Path(folder) / JOINT
        found = own if joint and not others and own.exists() else None
        return cls(model.eval(), job, found if isinstance(joint, bool) else Path(joint))

    @property
    def advised(self) -> bool:
        """Whether a joint model puts the answers of a beam in order."""
        return self._joint is not None

    @cached_property
    def joint(self) -> "Joint | None":
        """The joint model, read when the first beam is to be put in order."""
        from qkv.pronunciation.joint_ngram import Joint

        return None if self._joint is None else Joint.read(self._joint)

    @property
    def longest(self) -> int:
        """The most letters a word may have: as many as the model reads, which need not be as many as it writes."""
        from qkv.inference.source_text import longest_source

        most = longest_source(self.model)
        return LONGEST_WORD if most is None else most

    def knows(self, word: str) -> bool:
        """Whether the model has seen each letter, in this or the other case."""
        return self._letters.issuperset(self._read(word))

    def refuse(self, word: str) -> str | None:
        """Why the model cannot say this word; None if it can."""
        if len(word) > self.longest:
            return f"it has {len(word):,} letters, and the model takes {self.longest}"
        strange = sorted(set(self._read(word)) - self._letters)
        shown = ", ".join(map(repr, strange[:5])) + (", ..." if len(strange) > 5 else "")
        return f"it has {shown}, which the model has never seen" if strange or not word else None

    def say(
        self,
        words: Sequence[str],
        best: int = 1,
        beams: int = 1,
        length_power: float = 0.0,
        batch_size: int = BATCH,
    ) -> list[tuple[Pronunciation, ...]]:
        """The best few ways to say each word, in its order; those of like length are decoded together."""
        from qkv.inference import Search, answer

        wide = max(beams, best)
        joint = self.joint if wide > 1 else None
        search = Search(beams=wide, best=best if joint is None else wide, length_power=length_power)
        sources = [self._read(word) for word in words]
        found = answer(self._fast, self.job.strings, sources, search, batch_size, self._threads)
        if joint is not None:
            found = [self._reconsider(joint, *one)[:best] for one in zip(sources, found, strict=True)]
        return [self._write(hypotheses) for hypotheses in found]

    def _reconsider(self, joint: "Joint", letters: list[str], found: "list[Hypothesis]") -> "list[Hypothesis]":
        from qkv.pronunciation.rescore import rescore

        phones = [self.job.strings.targets.decode(one.tokens) for one in found]
        return rescore(joint, "".join(letters), found, phones)

    @property
    def _threads(self) -> int | None:
        """As many as torch is told to use, if the model bears it to be asked by several."""
        import torch

        return None if self._fast is self.model else torch.get_num_threads()

    @cached_property
    def _fast(self) -> "nn.Module":
        """The same model for writing only, if it is of a kind that can be made faster; on a GPU it is fast enough."""
        from qkv.models.fast.fused import Folded, can_fold

        on_cpu = next(self.model.parameters()).device.type == "cpu"
        return Folded(self.model) if on_cpu and can_fold(self.model) else self.model

    def _write(self, hypotheses: "list[Hypothesis]") -> tuple[Pronunciation, ...]:
        """In the order of the search, without one that has no phones."""
        decode = self.job.strings.targets.decode
        ways = (Pronunciation(tuple(decode(one.tokens)), math.exp(one.log_probability)) for one in hypotheses)
        return tuple(way for way in ways if way.phones)

    def _read(self, word: str) -> list[str]:
        from qkv.inference.source_text import in_known_case

        return in_known_case(word, self._letters)
