"""Speculative decoding: a draft proposes tokens, the model verifies them in one call; the result stays the same."""

from .draft import Draft as Draft
from .draft import Proposal as Proposal
from .model_draft import ModelDraft as ModelDraft
from .ngram_draft import PromptNgramDraft as PromptNgramDraft
from .search import SpeculationStatistics as SpeculationStatistics
from .search import speculative_stream as speculative_stream
