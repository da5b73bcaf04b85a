import math

import pytest
import torch

from qkv.decode import SearchLimits, beam, greedy, sample
from qkv.decode.stepper import Stepper, best_tokens
from tests.decode.models import Hidden, Prefixes, Table

LIMITS = SearchLimits(3)


class Fixed:
    """Gives these logits, whatever comes."""

    def __init__(self, logits):
        self.logits = logits

    def start(self, inputs, mask):
        return Hidden(torch.zeros(inputs.shape[0], 1))

    def step(self, tokens, state):
        return self.logits, state


SEARCHES = [greedy, lambda *a: beam(*a, beams=3), lambda *a: sample(*a, seed=0)]


def test_forbidden_tokens_are_taken_out_before_normalizing():
    logits = torch.tensor([[5.0, 6.0, math.log(1), math.log(3)]])
    result = Stepper(Fixed(logits), torch.zeros(1, 1, dtype=torch.int64), None, LIMITS).step([0], [1])
    assert result.tolist()[0] == pytest.approx([-math.inf, -math.inf, math.log(0.25), math.log(0.75)])
    assert logits.tolist()[0][:2] == [5.0, 6.0]


def test_half_precision_is_normalized_in_single():
    stepper = Stepper(Fixed(torch.zeros(1, 1002).half()), torch.zeros(1, 1, dtype=torch.int64), None, LIMITS)
    result = stepper.step([0], [1])
    assert result.dtype == torch.float32
    assert result[0, 2].item() == pytest.approx(-math.log(1000), abs=1e-6)


class Counted(Prefixes):
    selections = 0

    def select(self, rows):
        Counted.selections += 1
        return Counted(super().select(rows).rows)


def test_unchanged_rows_are_not_copied():
    class Model(Fixed):
        def start(self, inputs, mask):
            return Counted([0, 1])

    Counted.selections = 0
    stepper = Stepper(Model(torch.zeros(2, 5)), torch.zeros(2, 1, dtype=torch.int64), None, LIMITS)
    stepper.step([0, 1], [1, 1])
    assert Counted.selections == 0
    stepper.step([1, 0], [4, 4])
    assert (Counted.selections, stepper.state.rows) == (1, [1, 0])


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 1, 9), r"\(rows, vocabulary\) = \(2, \.\.\.\), got \(2, 1, 9\)"),
        (torch.zeros(3, 9), r"\(rows, vocabulary\) = \(2, \.\.\.\), got \(3, 9\)"),
        (torch.zeros(2, 2), "limits has token 2, but model.step returned logits of 2 tokens only"),
        (torch.tensor([[0.0] * 5, [0.0] * 4 + [math.nan]]), "invalid logits for 1 of 2 rows"),
        (torch.tensor([[0.0] * 5, [0.0] * 4 + [math.inf]]), "invalid logits for 1 of 2 rows"),
        (torch.tensor([[0.0] * 2 + [-math.inf] * 3] * 2), "invalid logits for 2 of 2 rows"),
    ],
)
def test_a_model_that_violates_the_protocol(search, logits, message):
    with pytest.raises(ValueError, match=message):
        search(Fixed(logits), torch.zeros(2, 1, dtype=torch.int64), None, LIMITS)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    ("inputs", "mask", "message"),
    [
        (torch.zeros(2, 3), None, r"inputs must be an int64 tensor.*got torch.float32 of shape \(2, 3\)"),
        (torch.zeros(3).long(), None, r"inputs must be.*\(batch, time\), got torch.int64 of shape \(3,\)"),
        (torch.zeros(2, 3).long(), torch.ones(2, 3), r"mask must be a bool tensor.*got torch.float32"),
        (torch.zeros(2, 3).long(), torch.ones(2, 4).bool(), r"shape of inputs, \(2, 3\).*got torch.bool.*\(2, 4\)"),
    ],
)
def test_bad_inputs(search, inputs, mask, message):
    with pytest.raises(ValueError, match=message):
        search(Fixed(torch.zeros(2, 5)), inputs, mask, LIMITS)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sample"])
def test_an_empty_batch(search):
    assert search(Table(None, 9), torch.zeros(0, 3, dtype=torch.int64), None, LIMITS) == []


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 40])
def test_best_tokens_breaks_ties_by_lowest_id(count):
    """Against Python's sort, on values with many ties."""
    for values in (torch.randint(0, 3, (50, 7)).float(), torch.randint(0, 300, (50, 7)).float(), torch.zeros(50, 7)):
        expected = [sorted(range(7), key=lambda token, row=row: (-row[token], token)) for row in values.tolist()]
        found, tokens = best_tokens(values, count)
        assert tokens.tolist() == [row[:count] for row in expected]
        assert torch.equal(found, values.gather(-1, tokens))
