import math
from collections import Counter
from importlib import import_module

import pytest
import torch

from qkv.decode import SearchLimits, greedy, sample, sampler
from qkv.decode.sample import draw_rows
from qkv.decode.single_path import search_single_path
from tests.decode.models import END, Net, Table, words

SHARES = {3: 0.4, 4: 0.3, 5: 0.15, 6: 0.1, 7: 0.05}
DRAWS = 20_000
# chi-square, chance of more 1 in 1,000, by degrees of freedom
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 24: 51.18}


def one_token():
    return Table(lambda source, prefix: SHARES, 8)


def draws(count=DRAWS, length=1, **options):
    inputs = torch.zeros(count, 1, dtype=torch.int64)
    return [h.tokens for h in sample(one_token(), inputs, None, SearchLimits(length), **{"seed": 5, **options})]


def chi_square(counts, expected):
    assert set(counts) == set(expected)
    total, whole = sum(counts.values()), sum(expected.values())
    means = {token: share / whole * total for token, share in expected.items()}
    return sum((counts[token] - mean) ** 2 / mean for token, mean in means.items())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, SHARES),
        ({"temperature": 0.5}, {token: share**2 for token, share in SHARES.items()}),
        ({"temperature": 2.0}, {token: share**0.5 for token, share in SHARES.items()}),
        ({"top_k": 3}, {3: 0.4, 4: 0.3, 5: 0.15}),
        ({"top_k": 100}, SHARES),
        ({"top_p": 0.6}, {3: 0.4, 4: 0.3}),
        ({"top_p": 0.71}, {3: 0.4, 4: 0.3, 5: 0.15}),
        ({"top_p": 1.0}, SHARES),
        ({"top_k": 2, "top_p": 0.9}, {3: 0.4, 4: 0.3}),
    ],
)
def test_frequencies(options, expected):
    counts = Counter(token for (token,) in draws(**options))
    assert chi_square(counts, expected) < CRITICAL[len(expected) - 1]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"top_k": 4, "top_p": 0.3}, {"temperature": 1e-9}])
def test_options_that_leave_one_token(options):
    assert set(draws(500, **options)) == {(3,)}


def test_top_k_and_then_top_p_of_what_is_left():
    """0.4 is 4/7 of the two that top_k leaves, enough for 0.55; of all five it would not be."""
    assert {token for (token,) in draws(500, top_k=2, top_p=0.55)} == {3}
    assert {token for (token,) in draws(500, top_p=0.55)} == {3, 4}


def test_positions_are_drawn_independently():
    counts = Counter(draws(length=2))
    expected = {(a, b): p * q for a, p in SHARES.items() for b, q in SHARES.items()}
    assert chi_square(counts, expected) < CRITICAL[24]


def test_seeds_are_drawn_independently():
    counts = Counter((a, b) for (a,), (b,) in zip(draws(seed=1), draws(seed=2), strict=True))
    expected = {(a, b): p * q for a, p in SHARES.items() for b, q in SHARES.items()}
    assert chi_square(counts, expected) < CRITICAL[24]


def test_the_seed_decides_and_nothing_else():
    net, (inputs, mask) = Net(), words(64)
    first = sample(net, inputs, mask, SearchLimits(12), seed=3)
    torch.rand(7)
    state = torch.get_rng_state()
    assert sample(net, inputs, mask, SearchLimits(12), seed=3) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert sample(net, inputs, mask, SearchLimits(12), seed=4) != first


def test_draws_do_not_depend_on_the_rest_of_the_batch():
    net, (inputs, mask) = Net(), words(64)
    together = sample(net, inputs, mask, SearchLimits(12), seed=3)
    few = sample(net, inputs[:5], mask[:5], SearchLimits(12), seed=3)
    assert [h.tokens for h in few] == [h.tokens for h in together[:5]]
    assert [h.score for h in few] == pytest.approx([h.score for h in together[:5]], abs=1e-5)


def test_finished_rows_do_not_change_the_draws_of_others():
    model = Table(lambda source, prefix: SHARES if source else {END: 1.0}, 8)
    short = sample(model, torch.tensor([[0], [1], [0], [1]]), None, SearchLimits(9), seed=3)
    full = sample(model, torch.tensor([[1], [1], [1], [1]]), None, SearchLimits(9), seed=3)
    assert [short[1], short[3]] == [full[1], full[3]]
    assert [len(hypothesis.tokens) for hypothesis in short] == [0, 9, 0, 9]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 3), (1 - 2**-53, 6)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_the_smallest_and_largest_uniform(monkeypatch, uniform, token, temperature):
    """The smallest and the largest uniform value still select a token of positive probability."""
    module = import_module("qkv.decode.sample")  # the package's `sample` is the function
    monkeypatch.setattr(module, "uniforms", lambda key, numbers: torch.full_like(numbers, uniform, dtype=torch.float64))
    assert draws(1, temperature=temperature, top_k=4) == [(token,)]


def test_log_probabilities_are_those_of_the_model():
    inputs = torch.zeros(50, 1, dtype=torch.int64)
    for found in sample(one_token(), inputs, None, SearchLimits(3), seed=5, temperature=0.3, top_k=4):
        expected = sum(math.log(SHARES[token]) for token in found.tokens)
        assert found.log_probability == pytest.approx(expected, abs=1e-12)
        assert (len(found.tokens), found.finished, found.score) == (3, False, found.log_probability)


def test_low_temperature_approaches_greedy():
    net, (inputs, mask) = Net(), words(100)
    assert sample(net, inputs, mask, SearchLimits(12), seed=0, temperature=1e-300) == greedy(
        net, inputs, mask, SearchLimits(12)
    )


def test_finished_rows_are_dropped_and_limits_kept():
    net = Net()
    with torch.no_grad():
        net.output.bias[:2] = 1e3
    found = sample(net, *words(200), SearchLimits(7), seed=1, temperature=3.0)
    lengths = [len(hypothesis.tokens) + hypothesis.finished for hypothesis in found]
    assert net.rows_stepped == [sum(length > step for length in lengths) for step in range(7)]
    assert {hypothesis.finished for hypothesis in found} == {True, False}
    emitted = {token for hypothesis in found for token in hypothesis.tokens}
    assert emitted == set(range(3, 23))
    assert END not in emitted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be finite and above 0, got 0.0; .*use greedy"),
        ({"temperature": -1.0}, "temperature must be finite and above 0, got -1.0; .*use greedy"),
        ({"temperature": math.inf}, "temperature must be finite and above 0, got inf$"),
        ({"temperature": math.nan}, "temperature must be finite and above 0, got nan$"),
        ({"top_k": 0}, "top_k must be at least 1, or None for all tokens, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, or None for all tokens, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, or None for all tokens, got 1.1"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        draws(1, **options)


def test_row_ids_give_later_batches_their_own_draws():
    """Two batches give the draws of one: the id of an input counts, not its row."""
    together = draws(8, 5)
    limits, inputs = SearchLimits(5), torch.zeros(4, 1, dtype=torch.int64)
    found = [
        search_single_path(one_token(), inputs, None, limits, sampler(seed=5, row_ids=range(n, n + 4))) for n in (0, 4)
    ]
    assert [one.tokens for batch in found for one in batch] == together


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8, "temperature": 2.0}])
def test_rows_drawn_together_are_drawn_as_alone(options):
    """Each by the seed of its own sampler at its own position, bit by bit."""
    samplers = [
        sampler(seed=seed, row_ids=ids, **options) for seed, ids in ((5, None), (2**62, None), (5, [7]), (0, None))
    ]
    log_probabilities = (2 * torch.randn(4, 31)).log_softmax(-1)
    found = 0
    for start in range(50):
        positions = [start, 3 * start, start, 0]
        alone = [one(log_probabilities[row : row + 1], [0], positions[row]).item() for row, one in enumerate(samplers)]
        assert draw_rows(samplers, log_probabilities, positions).tolist() == alone
        found += alone[0] != alone[2]
    assert found > 10
