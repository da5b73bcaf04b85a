import math

import pytest
import torch

from qkv.decode import SearchLimits, greedy
from tests.decode.models import END, Net, Table, words

CHAIN = {(): {4: 0.6, 5: 0.4}, (4,): {END: 0.2, 5: 0.8}, (4, 5): {END: 0.9, 4: 0.1}}


def one():
    return torch.zeros(1, 1, dtype=torch.int64)


def test_by_hand():
    (found,) = greedy(Table(lambda source, prefix: CHAIN[prefix], 6), one(), None, SearchLimits(9))
    assert (found.tokens, found.finished) == ((4, 5), True)
    assert found.log_probability == pytest.approx(math.log(0.6 * 0.8 * 0.9), abs=1e-12)
    assert found.score == found.log_probability


@pytest.mark.parametrize(("length", "tokens", "finished"), [(1, (4,), False), (2, (4, 5), False), (3, (4, 5), True)])
def test_max_length_counts_the_end(length, tokens, finished):
    (found,) = greedy(Table(lambda source, prefix: CHAIN[prefix], 6), one(), None, SearchLimits(length))
    assert (found.tokens, found.finished) == (tokens, finished)


def test_ties_go_to_the_lowest_id():
    uniform = Table(lambda source, prefix: dict.fromkeys(range(3, 13), 0.1), 13)
    (found,) = greedy(uniform, one(), None, SearchLimits(3))
    assert (found.tokens, found.finished) == ((3, 3, 3), False)
    assert found.log_probability == pytest.approx(3 * math.log(0.1), abs=1e-12)


def test_finished_rows_are_dropped():
    """Source n emits n tokens and then END."""
    model = Table(lambda source, prefix: {4 if len(prefix) < source else END: 1.0}, 6)
    found = greedy(model, torch.tensor([[3], [0], [1], [3]]), None, SearchLimits(9))
    assert [len(hypothesis.tokens) for hypothesis in found] == [3, 0, 1, 3]
    assert model.rows_stepped == [4, 3, 2, 2]


def test_other_ids_for_start_and_end():
    model = Table(lambda source, prefix: {(): {0: 0.6, 4: 0.4}, (0,): {1: 0.9, 4: 0.1}}[prefix], 6)
    (found,) = greedy(model, one(), None, SearchLimits(9, start=5, end=1, forbidden=(5,)))
    assert (found.tokens, found.finished) == ((0,), True)


def test_padding_and_start_are_never_emitted():
    """Even where the model wants nothing else."""
    net = Net()
    with torch.no_grad():
        net.output.bias[:2] = 1e3
    found = greedy(net, *words(100), SearchLimits(9))
    emitted = {token for hypothesis in found for token in hypothesis.tokens}
    assert len(emitted) > 5
    assert not emitted & {0, 1, END}


def test_scores_are_those_of_a_parallel_pass():
    net, (inputs, mask) = Net(), words(50)
    for row, found in enumerate(greedy(net, inputs, mask, SearchLimits(9))):
        path = torch.tensor([[*found.tokens, END][:9]])
        given = torch.cat((torch.tensor([[1]]), path[:, :-1]), 1)
        with torch.no_grad():
            logits = net.all_logits(inputs[row : row + 1], mask[row : row + 1], given)
        logits[..., :2] = -torch.inf
        own = logits.log_softmax(-1).gather(-1, path[..., None])
        assert found.log_probability == pytest.approx(own.sum().item(), abs=1e-5)
        assert torch.equal(logits.argmax(-1), path)


def test_alone_equals_in_a_batch():
    net, (inputs, mask) = Net(), words(64)
    together = greedy(net, inputs, mask, SearchLimits(12))
    lengths = mask.sum(1)
    for row, found in enumerate(together):
        cut = slice(0, int(lengths[row]))
        (alone,) = greedy(net, inputs[row : row + 1, cut], mask[row : row + 1, cut], SearchLimits(12))
        assert (alone.tokens, alone.finished) == (found.tokens, found.finished)
        assert alone.log_probability == pytest.approx(found.log_probability, abs=1e-5)
