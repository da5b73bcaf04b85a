import pytest
import torch

from tests.inference.batching.requests import TOKENS, small
from tests.models.sequences import walk

RECURRENT = [
    ("taylor", "rope", 3),
    ("taylor", "learned", 0),
    ("linear", "alibi", 0),
    ("elu", "sinusoidal", 0),
    ("delta+forget+write+convolution+output", "none", 0),
]


@pytest.mark.parametrize(("held", "new"), [((5, 11, 7, 2), (13, 3)), ((13, 3, 5, 5), (2, 7)), ((4, 4, 4, 4), (4, 4))])
@pytest.mark.parametrize(("attention", "positions", "convolution"), RECURRENT)
def test_rows_that_are_put_over_others(attention, positions, convolution, held, new):
    """Every row goes on as if it were alone, whichever is the longest."""
    model = small(attention, positions, convolution=convolution)
    prompts = [torch.randint(0, TOKENS, (1, length)) for length in (*held, *new)]
    with torch.inference_mode():
        states = [model.start(prompt, None) for prompt in prompts]
        first, second = states[0].join(*states[1:4]), states[4].join(states[5])
        joined = first.put(torch.tensor([3, 1]), second).compact()
        kept = [prompts[0], prompts[5], prompts[2], prompts[4]]
        assert joined.lengths == [prompt.shape[1] for prompt in kept]
        assert joined.length == max(joined.lengths)
        rest = torch.randint(0, TOKENS, (4, 6))
        found = walk(model, joined, rest)
        for row, prompt in enumerate(kept):
            expected = walk(model, model.start(prompt, None), rest[row : row + 1])
            torch.testing.assert_close(found[row : row + 1], expected, rtol=0, atol=1e-12)


def test_the_state_that_was_written_over_is_not_continued():
    model = small("taylor")
    first, second = (model.start(torch.randint(0, TOKENS, (2, 5)), None) for _ in range(2))
    with torch.inference_mode():
        first.put(torch.tensor([1]), second.select(torch.tensor([0])))
        with pytest.raises(ValueError, match="already continued in place"):
            model.step(torch.tensor([3, 4]), first)


def test_kv_caches_are_joined_instead():
    model = small("softmax")
    first, second = (model.start(torch.randint(0, TOKENS, (2, 5)), None) for _ in range(2))
    with pytest.raises(NotImplementedError, match="a state of class KVCache has no method 'put'"):
        first.put(torch.tensor([0, 1]), second)
    assert first.join(second).lengths == [5] * 4
