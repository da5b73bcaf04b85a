import pytest
import torch

from qkv.inference.speculative import ModelDraft
from tests.inference.speculative.decoders import KINDS_AND_CONVOLUTIONS, VOCABULARY, decoder


def greedy(logits, number):
    return int(logits.argmax()), None


def slow(model, ids, count):
    """The most probable tokens, by the whole sequence at each step."""
    text = list(ids)
    for _ in range(count):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(ids) :]


@pytest.mark.parametrize(("attention", "convolution"), KINDS_AND_CONVOLUTIONS)
def test_whatever_was_accepted_it_continues_from_there(attention, convolution):
    model = decoder(attention, seed=2, convolution=convolution)
    draft, ids = ModelDraft(model), [3, 1, 4, 1, 5]
    with torch.inference_mode():
        for accepted, count in [(4, 4), (0, 5), (3, 3), (1, 4), (2, 1), (0, 2), (4, 4), (1, 3)]:
            expected = slow(model, ids, count)
            assert list(draft.propose(ids, count, greedy).tokens) == expected
            ids += [*expected[:accepted], 7]
        assert list(draft.propose([2, 3], 3, greedy).tokens) == slow(model, [2, 3], 3)
        assert list(draft.propose([2, 3], 3, greedy).tokens) == slow(model, [2, 3], 3)


def test_it_feeds_each_token_once():
    model, fed = decoder("linear"), []
    model.embed.register_forward_pre_hook(lambda _, given: fed.extend(given[0].flatten().tolist()))
    draft, ids = ModelDraft(model), [3, 1, 4, 1, 5]
    with torch.inference_mode():
        first = list(draft.propose(ids, 4, greedy).tokens)
        assert fed == [*ids, *first[:3]]
        fed.clear()
        ids += [*first[:2], 7]
        second = list(draft.propose(ids, 4, greedy).tokens)
    assert fed == [7, *second[:3]]


def test_weights_are_those_that_the_rule_drew_from():
    model = decoder("softmax")
    seen = []

    def pick(logits, number):
        seen.append((number, logits))
        return 3 + number, logits.softmax(0)

    with torch.inference_mode():
        proposal = ModelDraft(model).propose([1, 2], 3, pick)
        expected = model(torch.tensor([[1, 2, 3, 4]]))[0, 1:]
    assert proposal.tokens == [3, 4, 5]
    assert [number for number, _ in seen] == [0, 1, 2]
    torch.testing.assert_close(torch.stack([logits for _, logits in seen]), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(proposal.weights), expected.softmax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("length", "proposed"), [(8, 3), (9, 2), (10, 1), (11, 0), (15, 0)])
def test_it_proposes_no_more_than_it_has_room_for(length, proposed):
    model = decoder("softmax", max_length=10)
    ids = torch.randint(0, VOCABULARY, (length,)).tolist()
    with torch.inference_mode():
        assert len(ModelDraft(model).propose(ids, 4, greedy).tokens) == proposed
