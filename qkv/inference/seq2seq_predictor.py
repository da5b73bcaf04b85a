"""Predict target strings from source strings, as `qkv predict` prints them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qkv.data import Vocabulary, pad
from qkv.decode import Hypothesis, sampler
from qkv.decode.single_path import search_single_path
from qkv.inference.predictor import AnswerPredictor, PredictOptions
from qkv.inference.seq2seq import Search, device_of, predict_targets, search_limits
from qkv.inference.source_text import in_known_case, longest_source
from qkv.inference.text_input import Units


class Seq2SeqPredictor(AnswerPredictor):
    """Predict target strings by greedy search, beam search (default) or sampling."""

    def __init__(
        self, model: nn.Module, sources: Vocabulary, targets: Vocabulary, units: Units, options: PredictOptions
    ):
        super().__init__(options.best)
        self.model, self.sources, self.targets, self.units, self.options = model, sources, targets, units, options
        self.search = options.search or "beam"
        options.require_beam(self.search)
        options.require_used(self.search)

    def check(self, text: str) -> None:
        """Raise ValueError if the source is longer than the model takes."""
        source, longest = self.units.source.split(text), longest_source(self.model)
        if longest is not None and len(source) > longest:
            raise ValueError(f"{text[:30]!r}... has {len(source)} tokens; the model takes {longest}")

    def predict(self, texts: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the best targets, or one sampled target, per source; warn of tokens that the model has never seen."""
        found = self._hypotheses([self._known_source(text) for text in texts], indices)
        return [
            {"input": text, "answers": [self._record(one) for one in hypotheses], "error": None}
            for text, hypotheses in zip(texts, found, strict=True)
        ]

    def _known_source(self, text: str) -> list[str]:
        """Return the tokens in the case that the model knows."""
        known = set(self.sources.tokens)
        source = in_known_case(self.units.source.split(text), known)
        unknown = sorted(set(source) - known)
        if unknown:
            self.options.warn(f"{text!r} has {', '.join(map(repr, unknown))}, which the model has never seen")
        return source

    def _hypotheses(self, sources: list[list[str]], indices: Sequence[int]) -> list[list[Hypothesis]]:
        if self.search == "sample":
            return self._sample(sources, indices)
        search = Search()
        if self.search == "beam":
            search = Search(beams=max(self.options.beams, self.options.best), n_best=self.options.best)
        return predict_targets(self.model, self.sources, sources, search)

    def _sample(self, sources: list[list[str]], indices: Sequence[int]) -> list[list[Hypothesis]]:
        own, device = self.options, device_of(self.model)
        rows, mask = pad([self.sources.encode(source) for source in sources])
        limits = search_limits(self.model)
        # no target in the data has it, but a sample could
        limits = replace(limits, forbidden=(*limits.forbidden, Vocabulary.UNKNOWN))
        draw = sampler(
            seed=own.seed, temperature=own.temperature, top_k=own.top_k, top_p=own.top_p, row_ids=list(indices)
        )
        with torch.inference_mode():
            found = search_single_path(self.model, rows.to(device), mask.to(device), limits, draw)  # type: ignore[arg-type]
        return [[one] for one in found]

    def _record(self, hypothesis: Hypothesis) -> dict[str, Any]:
        return {
            "text": self.units.target.join(self.targets.decode(hypothesis.tokens)),
            "probability": math.exp(hypothesis.log_probability),
            "score": hypothesis.score,
            "finished": hypothesis.finished,
        }
