"""Searches over the states of real attention: KV caches updated in place, recurrent states of fixed size."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from qkv.attention import Softmax, Taylor
from qkv.decode import SearchLimits, beam, greedy
from qkv.layers import Context, DecoderBlock, FeedForward, HeadsState, MultiHead, PreNorm
from qkv.positions import Rope
from tests.decode.models import END, words


@dataclass(frozen=True)
class Seen:
    heads: HeadsState
    context: Context

    def select(self, rows):
        return Seen(self.heads.select(rows), self.context.select(rows))


class Attending(nn.Module):
    """One decoder block over embedded inputs."""

    def __init__(self, attention, dim=16, vocabulary=23):
        super().__init__()
        self.read = nn.Embedding(29, dim)
        self.embed = nn.Embedding(vocabulary, dim)
        heads, cross = MultiHead(dim, 2, attention, Rope()), MultiHead(dim, 2, Softmax())
        self.block = DecoderBlock(heads, FeedForward(dim, 32), partial(PreNorm, dim), cross=cross)
        self.output = nn.Linear(dim, vocabulary)
        nn.init.constant_(self.output.bias[END], 1)

    def start(self, inputs, mask):
        return Seen(self.block.start(inputs.shape[0]), self.block.project_context(self.read(inputs), mask))

    def step(self, tokens, state):
        x, heads = self.block.step(self.embed(tokens)[:, None], state.heads, context=state.context)
        return self.output(x)[:, 0], Seen(heads, state.context)

    def all_logits(self, inputs, mask, tokens):
        """Logits of what follows each of `tokens` (batch, time), all at once."""
        return self.output(self.block(self.embed(tokens), context=self.block.project_context(self.read(inputs), mask)))


@pytest.fixture(params=[Softmax(), Softmax(window=3), Taylor()], ids=["cache", "window", "memory"])
def model(request):
    return Attending(request.param)


def test_beam_scores_are_those_of_a_parallel_pass(model):
    inputs, mask = words(30)
    searched = beam(model, inputs, mask, SearchLimits(10), beams=4, n_best=4, length_penalty=1.0)
    assert len({found.finished for hypotheses in searched for found in hypotheses}) == 2
    for row, hypotheses in enumerate(searched):
        for found in hypotheses:
            path = torch.tensor([[*found.tokens, END][:10]])
            given = torch.cat((torch.tensor([[1]]), path[:, :-1]), 1)
            with torch.no_grad():
                logits = model.all_logits(inputs[row : row + 1], mask[row : row + 1], given)
            logits[..., :2] = -torch.inf
            total = logits.log_softmax(-1).gather(-1, path[..., None]).sum().item()
            assert found.log_probability == pytest.approx(total, abs=1e-5)


def test_one_beam_is_greedy(model):
    inputs, mask = words(100)
    straight = greedy(model, inputs, mask, SearchLimits(10))
    assert [hypothesis for (hypothesis,) in beam(model, inputs, mask, SearchLimits(10), beams=1)] == straight
