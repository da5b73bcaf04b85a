"""Several models as one, against the mean of their probabilities taken by hand."""

import pytest
import torch

from qkv.decode import SearchLimits, beam, greedy
from qkv.models import EncoderDecoder, EncoderDecoderConfig, Ensemble, Recurrent, RecurrentConfig
from tests.models.sequences import padded
from tests.models.states import advance, check_forked, check_independent, check_saved

SOURCES, TARGETS = 11, 13


def transformer(max_length=19, targets=TARGETS):
    config = EncoderDecoderConfig(
        dim=8, heads=2, hidden_dim=8, encoder_layers=1, decoder_layers=1, max_length=max_length
    )
    return EncoderDecoder(config, SOURCES, targets).eval().double()


@pytest.fixture
def members():
    recurrent = Recurrent(RecurrentConfig(dim=6, max_length=17), SOURCES, TARGETS).eval().double()
    for model in (first := transformer(), recurrent):
        torch.nn.init.normal_(model.lm_head.weight, std=2.0)  # of one mind, a mean would not show
    return [first, recurrent]


def test_the_mean_of_probabilities(members):
    source, target = torch.randint(1, SOURCES, (3, 5)), torch.randint(1, TARGETS, (3, 7))
    mask = torch.ones(3, 5, dtype=torch.bool)
    expected = sum(member(source, target, mask).softmax(-1) for member in members) / 2
    torch.testing.assert_close(Ensemble(members)(source, target, mask).exp(), expected, rtol=1e-12, atol=0)


def test_step_by_step_equals_all_at_once(members):
    together = Ensemble(members)
    source, target = torch.randint(1, SOURCES, (3, 5)), torch.randint(1, TARGETS, (3, 7))
    whole = together(source, target, torch.ones(3, 5, dtype=torch.bool))
    state, rows = together.start(source, None), torch.tensor([2, 0])
    for place in range(7):
        logits, state = together.step(target[:, place], state)
        torch.testing.assert_close(logits, whole[:, place], rtol=1e-9, atol=1e-9)
        if place == 3:
            state, target, whole = state.select(rows), target[rows], whole[rows]


def test_it_decodes_as_a_model_does(members):
    source, limits = torch.randint(1, SOURCES, (4, 5)), SearchLimits(max_length=12)
    one, same = members[0], Ensemble([members[0]] * 3)
    assert [h.tokens for h in greedy(same, source, None, limits)] == [
        h.tokens for h in greedy(one, source, None, limits)
    ]
    best = beam(Ensemble(members), source, None, limits, beams=3, n_best=2)
    assert [len(found) for found in best] == [2] * 4
    assert Ensemble(members).config.max_length == 17


def test_bad_members(members):
    with pytest.raises(ValueError, match="members must be at least one model, got none"):
        Ensemble([])
    other = Ensemble([members[0], transformer(targets=14)])
    with pytest.raises(ValueError, match=r"the same vocabulary, got logits of \[13, 14\] tokens"):
        other(torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64))


def ragged(model):
    """The state of three rows, of which one entered late, with sources of other lengths."""
    source, mask = padded(2, 5, SOURCES)
    with torch.inference_mode():
        _, state = advance(model, model.start(source, mask), torch.randint(4, TARGETS, (2, 3)))
        return state.join(model.start(torch.randint(4, SOURCES, (1, 7)), None))


def test_its_states_obey_the_laws_of_states(members, tmp_path):
    model = Ensemble(members)
    tokens, others = torch.randint(4, TARGETS, (2, 3, 5))
    check_saved(model, ragged(model), tokens, tmp_path / "x.safetensors")
    check_forked(model, ragged(model), tokens, others)
    with torch.inference_mode():
        states = [model.start(torch.randint(4, SOURCES, (1, length)), None) for length in (3, 7, 2, 5)]
    check_independent(model, states, 1e-12)


def test_a_state_is_as_long_and_as_large_as_those_of_its_members(members):
    state = ragged(Ensemble(members))
    first, second = state.members
    assert (state.rows, state.length, state.lengths) == (3, 3, [3, 3, 0])
    assert state.bytes == first.bytes + second.bytes
    late = state.select(torch.tensor([2])).compact()
    assert (late.length, late.members[1].length, late.padding) == (0, 0, None)


def test_bad_input_states_of_other_members_are_not_joined(members):
    states = [Ensemble(chosen).start(torch.ones(1, 3, dtype=torch.long), None) for chosen in (members, members[:1])]
    with pytest.raises(ValueError, match=r"states cannot be joined: they have \[2, 1\] members"):
        states[0].join(states[1])
    with pytest.raises(ValueError, match="of classes EnsembleState and EncoderDecoderState"):
        states[0].join(states[1].members[0])
