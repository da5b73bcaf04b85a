import torch
from torch.nn.utils.rnn import pad_sequence

from qkv.data import PackedSequences, pad


def test_rows_and_mask():
    rows, mask = pad([[5, 7, 11], [13], [], [17, 19]], value=-2)
    assert rows.tolist() == [[5, 7, 11], [13, -2, -2], [-2, -2, -2], [17, 19, -2]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3, [True, True, False]]
    assert (rows.dtype, mask.dtype) == (torch.int64, torch.bool)


def test_equals_pad_sequence_of_torch():
    sequences = [list(range(3, 3 + length)) for length in (5, 2, 7, 1)]
    expected = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True)
    assert torch.equal(pad(sequences)[0], expected)


def test_nothing_to_pad():
    assert [tuple(x.shape) for x in pad([])] == [(0, 0), (0, 0)]
    assert [tuple(x.shape) for x in pad([[], []])] == [(2, 0), (2, 0)]
    assert pad([[0, 0]])[1].tolist() == [[True, True]]


def test_any_selection_in_any_order():
    ragged = PackedSequences([[5, 7, 11], [13], [], [17, 19], []])
    rows, mask = ragged.pad([4, 3, 1, 3], value=-2)
    assert rows.tolist() == [[-2, -2], [17, 19], [13, -2], [17, 19]]
    assert mask.tolist() == [[False, False], [True, True], [True, False], [True, True]]
    assert [tuple(x.shape) for x in ragged.pad([])] == [(0, 0), (0, 0)]
