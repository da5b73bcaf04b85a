import math

import pytest
import torch

from qkv.decode import SearchLimits, beam, greedy
from qkv.explain import next_token_log_probs, score_answer, search_tree
from qkv.models import EncoderDecoder, EncoderDecoderConfig

SOURCE = [4, 9, 6, 5, 8]
LIMITS = SearchLimits(max_length=6)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = EncoderDecoderConfig(dim=12, heads=3, hidden_dim=14, encoder_layers=1, decoder_layers=1, max_length=16)
    found = EncoderDecoder(config, 11, 9).eval()
    with torch.no_grad():
        found.lm_head.weight.mul_(9)  # far from even, so that searches differ
    return found


def path(found, node):
    tokens = []
    while found.nodes[node].parent is not None:
        tokens.insert(0, found.nodes[node].token)
        node = found.nodes[node].parent
    return tokens


def test_the_tree_holds_both_searches(model):
    found = search_tree(model, SOURCE, LIMITS, beams=3)
    (best,) = beam(model, torch.tensor([SOURCE]), None, LIMITS, beams=3, n_best=3)
    (walked,) = greedy(model, torch.tensor([SOURCE]), None, LIMITS)
    for node, hypothesis in zip(found.best, best, strict=True):
        assert path(found, node) == [*hypothesis.tokens, *([2] if hypothesis.finished else [])]
        assert found.nodes[node].log_probability == pytest.approx(hypothesis.log_probability, abs=1e-5)
    assert path(found, found.greedy[-1]) == [*walked.tokens, *([2] if walked.finished else [])]
    assert found.nodes[found.greedy[-1]].log_probability == pytest.approx(walked.log_probability, abs=1e-5)
    assert [found.nodes[node].greedy for node in found.greedy] == [True] * len(found.greedy)
    assert found.rescored == pytest.approx(best[0].log_probability, abs=1e-5)


@pytest.mark.parametrize("prefix", [(), (4, 6)])
def test_another_first_token_and_a_model_in_training(prefix):
    torch.manual_seed(7)
    config = EncoderDecoderConfig(
        dim=12, heads=3, hidden_dim=14, encoder_layers=1, decoder_layers=1, max_length=16, dropout=0.5
    )
    model = EncoderDecoder(config, 11, 9).train()
    limits = SearchLimits(max_length=6, start=5)
    found = search_tree(model, SOURCE, limits, beams=3, prefix=prefix)
    winner = found.nodes[found.best[0]]
    assert found.rescored == pytest.approx(winner.log_probability, abs=1e-5)
    assert found.rescored == search_tree(model, SOURCE, limits, beams=3, prefix=prefix).rescored
    assert all(part.training for part in model.modules())


def test_every_node_adds_up(model):
    found = search_tree(model, SOURCE, LIMITS, beams=3)
    assert len(found.nodes) > 20
    for branch in found.nodes[1:]:
        above = found.nodes[branch.parent]
        assert branch.log_probability == pytest.approx(above.log_probability + branch.token_log_probability, abs=1e-5)
        assert branch.step == above.step + 1


def test_own_probabilities_are_the_models(model):
    found = search_tree(model, SOURCE, LIMITS, beams=3)
    for node in found.greedy:
        before = path(found, found.nodes[node].parent)
        given = torch.tensor([[1, *before]])
        with torch.no_grad():
            logits = model(torch.tensor([SOURCE]), given)[0, -1]
        logits[[0, 1]] = -math.inf
        expected = float(logits.log_softmax(-1)[found.nodes[node].token])
        assert found.nodes[node].token_log_probability == pytest.approx(expected, abs=1e-5)


def test_a_prefix_is_forced(model):
    free = search_tree(model, SOURCE, LIMITS, beams=2)
    other = next(token for token in range(3, 9) if token != path(free, free.best[0])[0])
    found = search_tree(model, SOURCE, LIMITS, beams=2, prefix=[other, 5])
    assert [path(found, node)[:2] for node in (*found.best, found.greedy[-1])] == [[other, 5]] * 3
    assert len(path(found, found.greedy[-1])) <= LIMITS.max_length
    assert found.rescored == pytest.approx(found.nodes[found.best[0]].log_probability, abs=1e-5)
    assert found.greedy[:2] == [1, 2]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_forced_prefix_counts_in_the_scores(model, power):
    """With a beam as wide as the tree the winner is the best of all answers that begin so, by log p / length^power."""
    limits = SearchLimits(max_length=5)
    for other in range(3, 9):
        prefix = [other, 5, 4]
        found = search_tree(model, SOURCE, limits, beams=100, length_penalty=power, prefix=prefix)
        whole = [[*prefix, 2], *([*prefix, one, two] for one in range(3, 9) for two in range(2, 9))]
        scores = {tuple(one): score_answer(model, SOURCE, one, limits) / len(one) ** power for one in whole}
        best = max(scores, key=scores.get)
        assert path(found, found.best[0]) == list(best)
        own = [found.nodes[node].log_probability / found.nodes[node].step ** power for node in found.best]
        assert own == sorted(own, reverse=True)
        assert own[0] == pytest.approx(scores[best], abs=1e-5)


def test_a_greedy_path_that_the_beam_left_is_added(model):
    """With length power 0 and a beam of 1 both are the same; a wide beam may drop the greedy path, and says so."""
    alone = search_tree(model, SOURCE, LIMITS, beams=1)
    assert path(alone, alone.best[0]) == path(alone, alone.greedy[-1])
    assert all(branch.seen_by_beam for branch in alone.nodes)


def test_next_tokens_and_answer_scores(model):
    logs = next_token_log_probs(model, SOURCE, [5, 7], LIMITS)
    assert math.fsum(map(math.exp, logs)) == pytest.approx(1, abs=1e-5)
    assert logs[0] == logs[1] == -math.inf
    parts = [
        next_token_log_probs(model, SOURCE, before, LIMITS)[token] for before, token in (([], 5), ([5], 7), ([5, 7], 2))
    ]
    assert score_answer(model, SOURCE, [5, 7, 2], LIMITS) == pytest.approx(sum(parts), abs=1e-5)


def test_bad_input(model):
    with pytest.raises(ValueError, match="prefix must have fewer than max_length=6 tokens, got 6"):
        search_tree(model, SOURCE, LIMITS, beams=2, prefix=[4] * 6)
    with pytest.raises(ValueError, match="prefix has token 1, which is never generated"):
        search_tree(model, SOURCE, LIMITS, beams=2, prefix=[4, 1])
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        search_tree(model, SOURCE, LIMITS, beams=0)
