import pytest
import torch

from qkv.cancellation import CanceledError, cancelable
from qkv.decode import SearchLimits, argmax_token, sampler, stream
from qkv.inference.speculative import (
    ModelDraft,
    PromptNgramDraft,
    Proposal,
    SpeculationStatistics,
    speculative_stream,
)
from tests.inference.speculative.decoders import KINDS_AND_CONVOLUTIONS, Fixed, Hostile, decoder, perturbed

PROMPT = torch.tensor([[7, 11, 5, 7, 11, 3]])
LIMITS = SearchLimits(41, start=5, end=2)


def tokens(pairs):
    return [token for token, _ in pairs]


def counted(model, draft, limits=LIMITS, **options):
    statistics = SpeculationStatistics()
    found = list(speculative_stream(model, PROMPT, limits, argmax_token, draft, statistics=statistics, **options))
    return found, statistics


@pytest.mark.parametrize(("attention", "convolution"), KINDS_AND_CONVOLUTIONS)
def test_greedy_tokens_are_those_of_plain_decoding(attention, convolution):
    model = decoder(attention, convolution=convolution)
    expected = list(stream(model, PROMPT, LIMITS, argmax_token))
    similar, different = perturbed(model, 0.03), decoder("2*linear,softmax", seed=1, convolution=2)
    for draft in (ModelDraft(model), ModelDraft(similar), ModelDraft(different), PromptNgramDraft(), Hostile(model)):
        found, statistics = counted(model, draft)
        assert tokens(found) == tokens(expected)
        torch.testing.assert_close([x for _, x in found], [x for _, x in expected], rtol=0, atol=1e-10)
        assert statistics.tokens == len(expected)


def test_a_draft_equal_to_the_model_is_always_right():
    model = decoder("taylor")
    limits = SearchLimits(41, start=5, end=9, forbidden=())
    _, statistics = counted(model, ModelDraft(model), limits, proposed=7)
    # the first call has no draft; then 5 calls give 8 tokens each
    assert statistics == SpeculationStatistics(steps=6, proposed=35, accepted=35, tokens=41)
    assert statistics.accepted_per_step == pytest.approx(35 / 6)
    assert statistics.tokens_per_step == pytest.approx(41 / 6)


def test_a_hostile_draft_costs_calls_only():
    model = decoder("delta")
    _, statistics = counted(model, Hostile(model), SearchLimits(11, start=5, end=9, forbidden=()), proposed=3)
    assert (statistics.steps, statistics.accepted, statistics.tokens) == (11, 0, 11)
    assert statistics.proposed == 0 + 7 * 3 + 2 + 1 + 0  # none for the first call; no room for three at the end


def test_an_end_token_among_the_accepted_ends_the_text():
    model = decoder("linear")
    plain = tokens(stream(model, PROMPT, SearchLimits(20, start=5, end=0, forbidden=()), argmax_token))
    end = next(token for token in plain[4:] if token not in plain[:4])
    limits = SearchLimits(20, start=5, end=end, forbidden=())
    expected = plain[: plain.index(end) + 1]
    found, statistics = counted(model, ModelDraft(model), limits, proposed=9)
    assert tokens(found) == expected
    assert statistics.tokens == len(expected)
    # nothing is proposed after the end, and the end itself is accepted
    assert statistics.proposed == statistics.accepted <= len(expected) - 1


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_no_more_tokens_than_asked_for(length):
    model = decoder("softmax")
    limits = SearchLimits(length, start=5, end=0, forbidden=())
    found, _ = counted(model, ModelDraft(model), limits, proposed=4)
    assert tokens(found) == tokens(stream(model, PROMPT, limits, argmax_token))
    assert len(found) == length


def test_the_longest_text_that_the_model_takes():
    model = decoder("softmax", max_length=19)
    limits = SearchLimits(13, start=5, end=0, forbidden=())  # 6 + 1 tokens, and 12 that are fed back
    found, _ = counted(model, ModelDraft(model), limits, proposed=5)
    assert tokens(found) == tokens(stream(model, PROMPT, limits, argmax_token))
    draft = ModelDraft(decoder("linear", max_length=11))  # takes fewer: it stops proposing
    assert tokens(counted(model, draft, limits)[0]) == tokens(found)


def test_beyond_the_longest_text_it_fails_as_plain_decoding_does():
    model = decoder("softmax", max_length=13)
    limits = SearchLimits(20, start=5, end=0, forbidden=())
    plain, speculative = [], []
    with pytest.raises(ValueError, match="max_length=13") as expected:
        plain.extend(stream(model, PROMPT, limits, argmax_token))
    with pytest.raises(ValueError, match="max_length=13") as error:
        speculative.extend(speculative_stream(model, PROMPT, limits, argmax_token, ModelDraft(model)))
    assert str(error.value) == str(expected.value)
    assert tokens(speculative) == tokens(plain)
    assert len(plain) == 7


class BrokenAfter(torch.nn.Module):
    """A decoder whose logits after one token are NaN."""

    def __init__(self, model, token):
        super().__init__()
        self.model, self.token, self.config = model, token, model.config

    def start(self, inputs, mask):
        return self.model.start(inputs, mask)

    def prefill(self, tokens, state):
        return self.model.prefill(tokens, state)

    def step(self, tokens, state):
        logits, state = self.extend(tokens[:, None], state)
        return logits[:, 0], state

    def extend(self, tokens, state):
        logits, state = self.model.extend(tokens, state)
        return logits.masked_fill((tokens == self.token)[..., None], torch.nan), state


def test_invalid_logits_raise_when_they_are_reached():
    model = decoder("elu")
    limits = SearchLimits(20, start=5, end=0, forbidden=())
    plain = tokens(stream(model, PROMPT, limits, argmax_token))
    bad = next(token for token in plain[3:] if token not in [5, *plain[:3]])
    until = plain.index(bad) + 1
    found = []
    with pytest.raises(ValueError, match="model.extend returned invalid logits: NaN"):
        found.extend(speculative_stream(BrokenAfter(model, bad), PROMPT, limits, argmax_token, PromptNgramDraft()))
    assert tokens(found) == plain[: len(found)]
    assert until - 5 < len(found) <= until


def test_invalid_logits_after_a_wrong_proposal_are_no_error():
    model = decoder("elu")
    limits = SearchLimits(6, start=5, end=0, forbidden=())
    plain = tokens(stream(model, PROMPT, limits, argmax_token))
    bad = next(token for token in range(23) if token not in [5, *plain])
    draft = Fixed(*[Proposal([bad, bad], [None, None])] * 4)
    found = speculative_stream(BrokenAfter(model, bad), PROMPT, limits, argmax_token, draft)
    assert tokens(found) == plain
    draft = Fixed(*[Proposal([bad], [None])] * 4)
    found = speculative_stream(BrokenAfter(model, bad), PROMPT, limits, sampler(seed=3, top_k=1), draft)
    assert tokens(found) == plain


def test_invalid_logits_of_a_draft_are_named():
    model = decoder("elu")
    draft = ModelDraft(BrokenAfter(model, 5))
    with pytest.raises(ValueError, match="the draft returned invalid logits"):
        list(speculative_stream(model, PROMPT[:, :3], LIMITS, argmax_token, _always_from(draft, 5)))


def _always_from(draft, token):
    class Constant(type(draft)):
        def propose(self, ids, count, pick):
            return draft.propose([*ids[:-1], token], count, pick)

    return Constant(draft.model)


def test_a_sampler_without_proposals_draws_as_plain_sampling():
    model = decoder("softmax")
    choose = sampler(seed=17, temperature=0.8, top_k=9)
    found = list(speculative_stream(model, PROMPT, LIMITS, choose, Fixed()))
    assert tokens(found) == tokens(stream(model, PROMPT, LIMITS, choose))


def test_a_cancelled_search_stops():
    model = decoder("softmax")
    found = speculative_stream(model, PROMPT, LIMITS, argmax_token, PromptNgramDraft())
    next(found)
    with cancelable(lambda: True), pytest.raises(CanceledError):
        list(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": PROMPT.repeat(2, 1)}, "inputs must be one row, got 2"),
        ({"proposed": 0}, "proposed must be at least 1, got 0"),
        ({"choose": lambda *_: None}, "choose must be argmax_token or a sampler"),
        ({"limits": SearchLimits(5, end=23)}, "limits has token 23, but model.extend returned logits of 23 tokens"),
        ({"draft": Fixed(Proposal([23], [None]))}, r"up to 4 tokens from 0 to 22, got \[23\]"),
        ({"draft": Fixed(Proposal([3] * 5, [None] * 5))}, r"up to 4 tokens from 0 to 22, got \[3, 3, 3, 3, 3\]"),
        (
            {"choose": sampler(seed=0), "draft": Fixed(Proposal([3], [torch.ones(7)]))},
            "the draft has a vocabulary of 7 tokens, the model one of 23",
        ),
        (
            {"choose": sampler(seed=0), "draft": Fixed(Proposal([3], [torch.eye(23)[4]]))},
            "proposed token 3, which its own weights give probability 0",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    given = {"inputs": PROMPT, "limits": LIMITS, "choose": argmax_token, "draft": Fixed(), **arguments}
    with pytest.raises(ValueError, match=message):
        list(speculative_stream(decoder("softmax"), **given))
