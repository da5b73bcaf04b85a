import math
from collections import Counter

import pytest
import torch

from qkv.decode import SearchLimits, argmax_token, sampler
from qkv.inference.speculative import ModelDraft, PromptNgramDraft, Proposal, SpeculationStatistics, speculative_stream
from qkv.inference.speculative.rules import make_rule
from tests.inference.speculative.decoders import decoder, perturbed

P = torch.tensor([[0.1, 0.2, 0.4, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
Q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
DRAWS = 4_000
# chi-square, chance of more 1 in 1,000, by degrees of freedom
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27}


def first_tokens(weights, draw, **options):
    """The first token of many verifications, each with its own seed; `draw` gives the proposed token."""
    found = Counter()
    for seed in range(DRAWS):
        rule = make_rule(sampler(seed=seed, **options))
        proposal = Proposal([draw(rule)], [weights])
        found[next(iter(rule.tokens(P.log(), proposal, 1)))[0]] += 1
    return found


def chi_square(counts, expected):
    assert set(counts) <= {token for token, share in enumerate(expected) if share > 0}
    means = [share / sum(expected) * sum(counts.values()) for share in expected]
    return sum((counts[token] - mean) ** 2 / mean for token, mean in enumerate(means) if mean > 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.2, 0.4, 0.3]),
        ({"temperature": 0.5}, [0.01, 0.04, 0.16, 0.09]),
        ({"top_k": 2}, [0, 0, 0.4, 0.3]),
        ({"top_p": 0.8}, [0, 0.2, 0.4, 0.3]),
    ],
)
def test_tokens_have_the_distribution_of_the_model_whatever_the_draft(options, expected):
    def from_draft(rule):
        return rule.pick(Q.log(), 1)[0]

    counts = first_tokens(make_rule(sampler(seed=0, **options)).pick(Q.log(), 1)[1], from_draft, **options)
    assert chi_square(counts, expected) < CRITICAL[sum(share > 0 for share in expected) - 1]


def test_a_certain_proposal_leaves_the_distribution_alone():
    assert chi_square(first_tokens(None, lambda rule: 2), P[0].tolist()) < CRITICAL[3]


def test_a_proposal_is_kept_with_the_probability_min_1_p_over_q():
    kept = Counter()
    for seed in range(DRAWS):
        rule = make_rule(sampler(seed=seed))
        token, weights = rule.pick(Q.log(), 0)
        kept[next(iter(rule.tokens(P.log(), Proposal([token], [weights]), 0)))[1]] += 1
    share = float(torch.minimum(P[0], Q).sum())
    assert abs(kept[True] / DRAWS - share) < 4 * math.sqrt(share * (1 - share) / DRAWS)


def test_after_all_proposals_comes_one_more_token():
    rule = make_rule(sampler(seed=5))
    found = list(rule.tokens(P.log(), Proposal([2], [P[0]]), 0))
    assert found[0] == (2, True)
    assert [kept for _, kept in found] == [True, False]


def test_the_greedy_rule_stops_at_the_first_difference():
    rule = make_rule(argmax_token)
    log_probabilities = torch.eye(5).log()[[3, 1, 4, 2]]
    assert list(rule.tokens(log_probabilities, Proposal([3, 1, 0], [None] * 3), 0)) == [
        (3, True),
        (1, True),
        (4, False),
    ]
    assert list(rule.tokens(log_probabilities, Proposal([3, 1, 4], [None] * 3), 0))[-1] == (2, False)
    assert rule.pick(torch.tensor([0.0, 2.0, 2.0]), 0) == (1, None)


@pytest.mark.parametrize("draft", ["similar", "ngram"])
@pytest.mark.parametrize("attention", ["softmax", "delta"])
def test_pairs_of_tokens_have_the_distribution_of_the_model(attention, draft):
    """Both tokens after a prompt, against the product of the model's own probabilities."""
    model = decoder(attention, seed=4)
    similar = perturbed(model, 0.6)
    prompt, allowed = torch.tensor([[4, 5, 4]]), [2, 4, 5]
    limits = SearchLimits(3, start=5, end=2, forbidden=tuple(token for token in range(23) if token not in allowed))
    counts, statistics = Counter(), SpeculationStatistics()
    for seed in range(500):
        own = ModelDraft(similar) if draft == "similar" else PromptNgramDraft()
        choose = sampler(seed=seed, temperature=1.5)
        found = speculative_stream(model, prompt, limits, choose, own, proposed=2, statistics=statistics)
        counts[tuple(token for token, _ in found)] += 1
    assert statistics.accepted > 100
    assert statistics.proposed - statistics.accepted > 50
    expected = dict(paths(model, [4, 5, 4, 5], allowed, limits))
    assert sum(expected.values()) == pytest.approx(1)
    assert set(counts) <= set(expected)
    common = [path for path, share in expected.items() if share * 500 >= 5]
    found = sum((counts[path] - expected[path] * 500) ** 2 / (expected[path] * 500) for path in common)
    degrees = len(common)
    assert degrees >= 4
    assert found < degrees + 4 * math.sqrt(2 * degrees) + 6  # chi-square: mean and 4 standard deviations, and its tail


def paths(model, ids, allowed, limits, path=(), share=1.0):
    """Every path with its probability, by the whole sequence at each step."""
    logits = model(torch.tensor([[*ids, *path]]))[0, -1, allowed]
    for token, own in zip(allowed, (logits / 1.5).softmax(0).tolist(), strict=True):
        if token == limits.end or len(path) + 1 == limits.max_length:
            yield (*path, token), share * own
        else:
            yield from paths(model, ids, allowed, limits, (*path, token), share * own)
