import pytest
import torch

from qkv.decode import SearchLimits, greedy, sampler, stream
from qkv.inference import ModelDraft, PredictOptions, PrefixCache, PromptNgramDraft, TextPredictor, generate_ids
from qkv.models import Ensemble
from tests.inference.speculative.decoders import decoder

PROMPT = [7, 11, 5, 7, 11, 3]
LIMITS = SearchLimits(20, end=2)


def test_ids_are_those_of_the_searches():
    model = decoder("taylor")
    (expected,) = greedy(model, torch.tensor([PROMPT[:-1]]), None, SearchLimits(20, start=3, end=2))
    found = list(generate_ids(model, PROMPT, LIMITS))
    assert tuple(token for token in found if token != 2) == expected.tokens
    assert (found[-1] == 2) == expected.finished
    choose = sampler(seed=3)
    drawn = [token for token, _ in stream(model, torch.tensor([PROMPT[:-1]]), SearchLimits(20, start=3, end=2), choose)]
    assert list(generate_ids(model, PROMPT, LIMITS, choose)) == drawn != found


def test_a_cache_and_a_draft_change_nothing_but_the_time():
    model = decoder("delta")
    expected = list(generate_ids(model, PROMPT, LIMITS))
    cache = PrefixCache(model, 10**6, block=2)
    for draft in (None, PromptNgramDraft(), ModelDraft(decoder("softmax", seed=1))):
        assert list(generate_ids(model, PROMPT, LIMITS, prefix_cache=cache, draft=draft)) == expected
    assert cache.statistics().tokens_reused == 8


def test_one_id_is_a_prompt():
    model = decoder("softmax")
    assert list(generate_ids(model, [5], LIMITS, prefix_cache=PrefixCache(model, 9**9))) == list(
        generate_ids(model, [5], LIMITS)
    )


def test_wrong_arguments():
    model = decoder("softmax")
    with pytest.raises(ValueError, match="prompt must have at least one id"):
        list(generate_ids(model, [], LIMITS))
    with pytest.raises(ValueError, match="prefix_cache holds the states of another model"):
        list(generate_ids(model, PROMPT, LIMITS, prefix_cache=PrefixCache(decoder("softmax"), 0)))
    several = Ensemble([model, model])
    with pytest.raises(ValueError, match="model must have extend, as Decoder has, to verify a draft, got Ensemble"):
        list(generate_ids(several, PROMPT, LIMITS, draft=PromptNgramDraft()))
    with pytest.raises(ValueError, match="model must have prefill, as Decoder has, got Ensemble"):
        PrefixCache(several, 0)


def test_beam_search_takes_no_draft():
    with pytest.raises(
        ValueError, match="--draft has no effect with --search beam; it needs --search greedy or sample"
    ):
        TextPredictor(None, decoder(), PredictOptions(search="beam", draft=PromptNgramDraft()))
