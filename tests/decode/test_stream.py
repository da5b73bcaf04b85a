import pytest
import torch

from qkv.decode import SearchLimits, argmax_token, greedy, sample, sampler, stream
from qkv.models import Decoder, DecoderConfig
from tests.decode.models import END, START, random_table

SOURCE = torch.tensor([[5]])


@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_of_greedy_and_of_sample(seed):
    limits = SearchLimits(9, START, END)
    for choose, whole in (
        (argmax_token, greedy(random_table(4, seed), SOURCE, None, limits)),
        (sampler(seed=3, top_k=3), sample(random_table(4, seed), SOURCE, None, limits, seed=3, top_k=3)),
    ):
        found = list(stream(random_table(4, seed), SOURCE, limits, choose))
        tokens = tuple(token for token, _ in found)
        assert tokens == (*whole[0].tokens, *([END] * whole[0].finished))
        assert sum(own for _, own in found) == pytest.approx(whole[0].log_probability, rel=1e-12)


def test_a_token_comes_before_the_next_is_computed():
    table = random_table(4, 0)
    made = stream(table, SOURCE, SearchLimits(9, START, END), argmax_token)
    assert table.rows_stepped == []
    next(made)
    assert table.rows_stepped == [1]


def test_the_caller_may_use_gradients():
    made = stream(random_table(4, 0), SOURCE, SearchLimits(9, START, END), argmax_token)
    next(made)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("kind", ["linear", "elu", "taylor"])
def test_memory_is_constant(kind):
    """The state of a linear kind keeps its initial size after any number of tokens."""
    torch.manual_seed(0)
    config = DecoderConfig(dim=12, heads=2, hidden_dim=8, attention=kind, positions="none", max_length=200)
    model = Decoder(config, 7).eval()
    held = []
    step = model.step

    def watched(tokens, state):
        held.append((state.bytes, tuple(tokens.shape)))
        return step(tokens, state)

    model.step = watched
    never_ends = lambda values, sources, position: 4 + values[:, 4:].argmax(-1)  # noqa: E731
    made = stream(model, torch.tensor([[3, 4]]), SearchLimits(150, start=1, end=2), never_ends)
    assert len(list(made)) == len(held) == 150
    assert len(set(held)) == 1


def test_more_than_one_row_raises():
    with pytest.raises(ValueError, match="inputs must be one row, got 2"):
        next(stream(random_table(4, 0), torch.tensor([[5], [6]]), SearchLimits(9, START, END), argmax_token))
