"""Laws of decoding states, for models of every family."""

import torch

from qkv.models import load_state, save_state

START = 1


def advance(model, state, tokens):
    """Logits (rows, time, tokens) token by token, and the last state."""
    logits = []
    for column in tokens.unbind(1):
        out, state = model.step(column, state)
        logits.append(out)
    return torch.stack(logits, 1), state


def tensors_of(state):
    return {name: (x.dtype, tuple(x.shape)) for name, x in state.tensors().items()}


def check_saved(model, state, tokens, path):
    """A state from a file is the same, and continues with the bits of one that was never saved.

    It is saved after a step, which may have written into a larger buffer than a file holds.
    """
    with torch.inference_mode():
        _, state = model.step(tokens[:, -1], state)
        save_state(path, model, state)
        loaded = load_state(path, model)
        assert tensors_of(loaded) == tensors_of(state)
        assert all(torch.equal(x, state.tensors()[name]) for name, x in loaded.tensors().items())
        expected, last = advance(model, state, tokens)
        found, loaded = advance(model, loaded, tokens)
    assert torch.equal(found, expected)
    assert loaded.lengths == last.lengths
    assert expected.isfinite().all()


def check_forked(model, state, tokens, others):
    """Two continuations of one state, in turns, are those of two separate states; neither changes the first."""
    with torch.inference_mode():
        before = {name: x.clone() for name, x in state.tensors().items()}
        branches, found = [state.fork(), state.fork()], [[], []]
        separate = [advance(model, state.fork(), given)[0] for given in (tokens, others)]
        for columns in zip(tokens.unbind(1), others.unbind(1), strict=True):
            for branch, column in enumerate(columns):
                out, branches[branch] = model.step(column, branches[branch])
                found[branch].append(out)
        assert torch.equal(torch.stack(found[0], 1), separate[0])
        assert torch.equal(torch.stack(found[1], 1), separate[1])
        assert not torch.equal(*separate)
        assert all(torch.equal(x, before[name]) for name, x in state.tensors().items())
        wide = state.fork(3)
        assert wide.rows == 3 * state.rows
        assert wide.lengths == [length for length in state.lengths for _ in range(3)]


def greedy_alone(model, state, steps):
    """The greedy tokens of one row, and the log-probabilities of all tokens at each step."""
    tokens, scores = [START], []
    for _ in range(steps):
        logits, state = model.step(torch.tensor(tokens[-1:]), state)
        scores.append(logits[0].log_softmax(-1))
        tokens.append(int(logits[0].argmax()))
    return tokens[1:], torch.stack(scores)


def check_independent(model, states, bound):
    """Four rows that share states for a while get what each gets alone: same tokens, scores within `bound`.

    Rows 0 and 1 begin, 2 and 3 enter after three steps, 0 leaves after five; a row never knows.
    """
    with torch.inference_mode():
        expected = [greedy_alone(model, state.fork(), 9) for state in states]
        tokens, scores = [[START] for _ in states], [[] for _ in states]
        present, state = [0, 1], states[0].join(states[1])
        for step in range(9):
            if step == 3:
                present, state = [0, 1, 2, 3], state.join(*states[2:])
            if step == 5:
                present, state = [3, 1, 2], state.select(torch.tensor([3, 1, 2])).compact()
                assert state.length == max(state.lengths)
            logits, state = model.step(torch.tensor([tokens[row][-1] for row in present]), state)
            for row, own in zip(present, logits, strict=True):
                tokens[row].append(int(own.argmax()))
                scores[row].append(own.log_softmax(-1))
    taken = [len(own) for own in scores]
    assert taken == [5, 9, 6, 6]
    assert state.lengths == [states[row].lengths[0] + taken[row] for row in present]
    for row, count in enumerate(taken):
        assert tokens[row][1:] == expected[row][0][:count]
        torch.testing.assert_close(torch.stack(scores[row]), expected[row][1][:count], rtol=0, atol=bound)
