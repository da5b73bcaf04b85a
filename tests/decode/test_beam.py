import math

import pytest
import torch

from qkv.decode import SearchLimits, beam, greedy
from tests.decode.models import END, Net, Table, every_path, random_table, ranked, slow_beam, words

A, B, OTHERS = 4, 5, range(6, 16)
TWO_TOKENS = {
    (): {A: 0.7, B: 0.3},
    (A,): {END: 0.1, **dict.fromkeys(OTHERS, 0.09)},
    (B,): {END: 0.9, **dict.fromkeys(OTHERS, 0.01)},
}


def sources(*numbers):
    return torch.tensor([[number] for number in numbers])


def check_equal(found, expected):
    """Hypotheses against (score, tokens, log-probability, finished)."""
    assert [h.tokens for h in found] == [tokens for _, tokens, _, _ in expected]
    assert [h.finished for h in found] == [finished for _, _, _, finished in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _, _, _ in expected], abs=1e-12)
    assert [h.log_probability for h in found] == pytest.approx([total for _, _, total, _ in expected], abs=1e-12)


def test_a_beam_of_two_finds_what_greedy_misses():
    model = Table(lambda source, prefix: TWO_TOKENS[prefix], 16)
    (straight,) = greedy(model, sources(0), None, SearchLimits(2))
    ((found,),) = beam(model, sources(0), None, SearchLimits(2), beams=2)
    assert (straight.tokens, math.exp(straight.log_probability)) == ((A,), pytest.approx(0.07))
    assert (found.tokens, math.exp(found.log_probability)) == ((B,), pytest.approx(0.27))


@pytest.mark.parametrize("length_power", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_as_wide_as_the_tree_is_exhaustive(length_power):
    """200 random trees; also when it may stop at the first that nothing can beat."""
    for seed in range(50):
        for branches, max_length in ((2, 5), (3, 3), (3, 4), (4, 3)):
            model = random_table(branches, seed)
            expected = ranked(every_path(model.probabilities, 0, max_length), length_power)
            width = len(expected)
            (found,) = beam(
                model,
                sources(0),
                None,
                SearchLimits(max_length),
                beams=width,
                n_best=width,
                length_penalty=length_power,
            )
            check_equal(found, expected)
            (first,) = beam(model, sources(0), None, SearchLimits(max_length), beams=width, length_penalty=length_power)
            assert first == found[:1]


@pytest.mark.parametrize("length_power", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_stopping_early_changes_nothing(beams, length_power):
    """Against plain loops that always run to the end, for many sources."""
    model = random_table(branches=4, seed=7)
    limits = SearchLimits(6)
    found = beam(model, sources(*range(50)), None, limits, beams=beams, n_best=beams, length_penalty=length_power)
    for source, hypotheses in enumerate(found):
        check_equal(hypotheses, slow_beam(model.probabilities, source, 6, beams, length_power))
    first = beam(model, sources(*range(50)), None, limits, beams=beams, length_penalty=length_power)
    assert first == [hypotheses[:1] for hypotheses in found]


def test_it_does_stop_early():
    model = Table(lambda source, prefix: {END: 0.6, 4: 0.4}, 6)
    beam(model, sources(0), None, SearchLimits(50), beams=3)
    assert model.rows_stepped == [1]
    model.rows_stepped.clear()
    beam(model, sources(0), None, SearchLimits(50), beams=3, n_best=3)
    assert model.rows_stepped == [1, 1, 1]


def test_decided_sources_are_dropped():
    """Source n has a path that ends after n tokens and one of almost no probability that never ends."""
    model = Table(lambda source, prefix: {4 if len(prefix) < source else END: 0.999, 5: 0.001}, 6)
    found = beam(model, sources(3, 0, 1, 3), None, SearchLimits(9), beams=2)
    assert [len(hypothesis.tokens) for (hypothesis,) in found] == [3, 0, 1, 3]
    assert model.rows_stepped == [4, 6, 4, 4]


def test_one_beam_is_greedy_to_the_last_bit():
    net, (inputs, mask) = Net(), words(1000)
    straight = greedy(net, inputs, mask, SearchLimits(12))
    rows_of_greedy = list(net.rows_stepped)
    net.rows_stepped.clear()
    found = beam(net, inputs, mask, SearchLimits(12), beams=1)
    assert [hypothesis for (hypothesis,) in found] == straight
    assert net.rows_stepped == rows_of_greedy
    assert len({hypothesis.tokens for hypothesis in straight}) > 300
    assert 100 < sum(hypothesis.finished for hypothesis in straight) < 900


def test_one_beam_is_greedy_where_tokens_are_equal():
    """A model of few values, so ties are everywhere."""

    class Coarse(Net):
        def step(self, tokens, state):
            logits, state = super().step(tokens, state)
            return (logits / 4).round(), state

    net, (inputs, mask) = Coarse(), words(200)
    straight = greedy(net, inputs, mask, SearchLimits(12))
    assert [hypothesis for (hypothesis,) in beam(net, inputs, mask, SearchLimits(12), beams=1)] == straight
    assert len({hypothesis.tokens for hypothesis in straight}) > 25


def test_ties_go_to_the_better_path_and_then_the_lowest_id():
    model = Table(lambda source, prefix: dict.fromkeys((3, 4, 5, 6), 0.25), 7)
    (found,) = beam(model, sources(0), None, SearchLimits(2), beams=6, n_best=6)
    assert [hypothesis.tokens for hypothesis in found] == [(3, 3), (3, 4), (3, 5), (3, 6), (4, 3), (4, 4)]


@pytest.mark.parametrize("beams", [4, 9])
def test_alone_equals_in_a_batch(beams):
    net, (inputs, mask) = Net(), words(64)
    together = beam(net, inputs, mask, SearchLimits(12), beams=beams, n_best=beams, length_penalty=0.7)
    for row, length in enumerate(mask.sum(1).tolist()):
        one = inputs[row : row + 1, :length], mask[row : row + 1, :length]
        (alone,) = beam(net, *one, SearchLimits(12), beams=beams, n_best=beams, length_penalty=0.7)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-5)


def test_scores_are_those_of_a_parallel_pass():
    net, (inputs, mask) = Net(), words(40)
    for row, hypotheses in enumerate(beam(net, inputs, mask, SearchLimits(9), beams=5, n_best=5, length_penalty=0.5)):
        for found in hypotheses:
            path = torch.tensor([[*found.tokens, END][:9]])
            given = torch.cat((torch.tensor([[1]]), path[:, :-1]), 1)
            with torch.no_grad():
                logits = net.all_logits(inputs[row : row + 1], mask[row : row + 1], given)
            logits[..., :2] = -torch.inf
            total = logits.log_softmax(-1).gather(-1, path[..., None]).sum().item()
            assert found.log_probability == pytest.approx(total, abs=1e-5)
            assert found.score == pytest.approx(total / path.shape[1] ** 0.5, abs=1e-5)
            assert found.finished == (path[0, -1].item() == END)


def test_the_n_best_are_sorted_and_distinct():
    found = beam(Net(), *words(100), SearchLimits(12), beams=6, n_best=6, length_penalty=1.0)
    for hypotheses in found:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == 6
        assert max(len(hypothesis.tokens) + hypothesis.finished for hypothesis in hypotheses) <= 12


def test_padding_and_start_are_never_emitted():
    net = Net()
    with torch.no_grad():
        net.output.bias[:2] = 1e3
    found = beam(net, *words(50), SearchLimits(9), beams=30, n_best=30)
    emitted = {token for hypotheses in found for hypothesis in hypotheses for token in hypothesis.tokens}
    assert emitted == set(range(3, 23))


def test_fewer_paths_than_beams():
    model = Table(lambda source, prefix: {END: 0.5, 4: 0.5} if not prefix else {END: 1.0}, 6)
    (found,) = beam(model, sources(0), None, SearchLimits(5), beams=7, n_best=7)
    assert [hypothesis.tokens for hypothesis in found] == [(), (4,)]


def test_a_length_penalty_lets_the_longer_win():
    """0.4 against 0.6 x 0.6: -0.916 to -1.022 as they are, -0.916 to -0.511 by the token."""
    model = Table(lambda source, prefix: {(): {END: 0.4, 4: 0.6}, (4,): {END: 0.6, 4: 0.4}}[prefix], 6)
    ((plain,),) = beam(model, sources(0), None, SearchLimits(2), beams=2)
    ((mean,),) = beam(model, sources(0), None, SearchLimits(2), beams=2, length_penalty=1.0)
    assert (plain.tokens, plain.score) == ((), pytest.approx(math.log(0.4)))
    assert (mean.tokens, mean.score) == ((4,), pytest.approx(math.log(0.6)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be at least 1, got 0"),
        ({"beams": 3, "n_best": 4}, "n_best must be from 1 to beams=3, got 4"),
        ({"beams": 3, "n_best": 0}, "n_best must be from 1 to beams=3, got 0"),
        ({"beams": 3, "length_penalty": -0.5}, "length_penalty must be at least 0, got -0.5"),
        ({"beams": 3, "length_penalty": math.nan}, "length_penalty must be at least 0, got nan"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        beam(Net(), *words(2), SearchLimits(5), **options)
