from itertools import pairwise

import pytest
import torch

from qkv.attention import Additive, Softmax, Taylor
from qkv.layers import Heads, MultiHead, Packing, ShortConvolution, pack_documents
from qkv.layers import packing as packing_module
from qkv.positions import T5, Alibi, Positions, Rope, Shaw, schemes


def rows_of(*lengths, time):
    """Return True where documents of these lengths start, in rows of `time` tokens, which they must fill."""
    flat = [position == 0 for length in lengths for position in range(length)]
    return torch.tensor(flat).view(-1, time)


def test_positions_and_groups_by_hand():
    """Documents of 3, 1, 2 and 6 in rows of 6: those of 1 and 2 do not begin a row, and are padded to 2."""
    packing = pack_documents(rows_of(3, 1, 2, 6, time=6))
    assert packing.positions.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert packing.token_index.tolist() == [3, 4, 5]
    assert [group.tolist() for group in packing.groups] == [[[3, 3], [4, 5]]]
    assert packing.slot_index.tolist() == [0, 2, 3]


def test_all_documents_are_extracted_if_most_would_run_twice():
    """2, 1, 3 and 1, 5: 9 of 12 do not begin a row. 2 and 3 form a group with 1 padding; more would exceed 3."""
    packing = pack_documents(rows_of(2, 1, 3, 1, 5, time=6))
    assert packing.token_index.tolist() == list(range(12))
    assert [group.tolist() for group in packing.groups] == [
        [[2], [6]],
        [[0, 1, 1], [3, 4, 5]],
        [[7, 8, 9, 10, 11]],
    ]
    assert packing.slot_index.tolist() == [2, 3, 0, 5, 6, 7, 1, 8, 9, 10, 11, 12]


def running_sum(*given):
    """Return the running sum over a row, which is causal."""
    return sum(x.cumsum(1) for x in given)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [0.003, 0.5])
def test_running_sums_are_per_document(seed, rate):
    chance = torch.Generator().manual_seed(seed)
    starts = torch.rand(7, 101, generator=chance) < rate
    starts[3, 1] = True
    starts[5] = False
    x, y = torch.randint(-9, 9, (2, 7, 101, 3), generator=chance)
    packing = pack_documents(starts)
    assert (packing.token_index.numel() == 7 * 101) == (rate == 0.5)
    starts[:, 0] = True
    firsts = [*starts.flatten().nonzero()[:, 0].tolist(), 7 * 101]
    expected = torch.cat([(x + y).flatten(0, 1)[a:b].cumsum(0) for a, b in pairwise(firsts)])
    assert torch.equal(packing.apply_per_document(running_sum, x, y).flatten(0, 1), expected)
    again = Packing.from_tensors(packing.tensors)
    assert torch.equal(again.apply_per_document(running_sum, x, y).flatten(0, 1), expected)


@pytest.mark.parametrize("seed", range(5))
def test_padding_and_repeated_work_are_bounded(seed):
    chance = torch.Generator().manual_seed(seed)
    starts = torch.rand(7, 101, generator=chance) < 10.0 ** -torch.rand((), generator=chance) / 2
    packing = pack_documents(starts)
    worked = sum(group.numel() for group in packing.groups)
    assert worked <= 2 * 7 * 101
    assert worked - packing.token_index.numel() <= 7 * 101


def test_rows_of_one_document_need_no_packing():
    assert pack_documents(torch.zeros(3, 5, dtype=torch.bool)) is None
    assert pack_documents(torch.tensor([[True, False], [False, False]])) is None
    assert Packing.from_tensors(()) is None


def test_only_causal_attention_can_be_packed():
    packing = pack_documents(rows_of(2, 3, time=5))
    layer, x = MultiHead(6, 2, Softmax()), torch.randn(1, 5, 6)
    with pytest.raises(ValueError, match="packing needs causal=True and mask=None"):
        layer(x, packing=packing)
    with pytest.raises(ValueError, match="packing needs causal=True and mask=None"):
        layer(x, causal=True, mask=torch.ones(1, 5, dtype=torch.bool), packing=packing)


def test_document_mask_by_hand():
    """Documents of 3, 1, 2 in a row of 6, and one of 6."""
    packing = pack_documents(rows_of(3, 1, 2, 6, time=6))
    first = ["100000", "110000", "111000", "000100", "000010", "000011"]
    second = ["100000", "110000", "111000", "111100", "111110", "111111"]
    expected = torch.tensor([[[int(seen) for seen in line] for line in row] for row in (first, second)]).bool()
    assert torch.equal(packing.document_mask, expected[:, None])
    assert packing.document_mask is packing.document_mask  # made once for all layers


class Own(Positions):
    """A bias per key position: not a relative scheme."""

    gives = frozenset({"bias"})
    kind = "own"

    @classmethod
    def from_sizes(cls, sizes):
        return cls()

    def bias(self, q, query_index, key_index):
        return (key_index * 0.3).sin().to(q.dtype).expand(1, q.shape[1], len(query_index), -1)


class OwnWay(Softmax):
    """A softmax that does not accept a mask of pairs."""

    accepts = frozenset({"bias", "rotation"})


MASKED = {
    "softmax": lambda: MultiHead(12, 3, Softmax()),
    "softmax by its definition": lambda: MultiHead(12, 3, Softmax(backend="reference"), Rope()),
    "softmax rope": lambda: MultiHead(12, Heads(6, key_heads=2, key_dim=4), Softmax(), Rope()),
    "softmax alibi": lambda: MultiHead(12, 3, Softmax(), Alibi(3)),
    "softmax t5": lambda: MultiHead(12, 3, Softmax(), T5(3, bidirectional=False, buckets=6, max_distance=9)),
    "softmax t5 of both directions": lambda: MultiHead(12, 3, Softmax(), T5(3, bidirectional=True)),
    "softmax shaw": lambda: MultiHead(12, 3, Softmax(), Shaw(4, distance=3)),
    "softmax window": lambda: MultiHead(12, 3, Softmax(window=3), Alibi(3)),
    "softmax window by its definition": lambda: MultiHead(12, 3, Softmax(window=3, backend="reference"), Rope()),
    "softmax convolution": lambda: MultiHead(12, 3, Softmax(), Rope(), convolution=ShortConvolution(12)),
    "additive": lambda: MultiHead(12, 3, Additive(4)),
    "additive alibi": lambda: MultiHead(12, 3, Additive(4), Alibi(3)),
    "additive t5": lambda: MultiHead(12, Heads(6, key_heads=2), Additive(2), T5(6, bidirectional=False)),
}
BY_DOCUMENT = {
    "taylor": lambda: MultiHead(12, 3, Taylor(), Alibi(3)),
    "no mask of pairs": lambda: MultiHead(12, 3, OwnWay(), Rope()),
    "no distances": lambda: MultiHead(12, 3, Softmax(), Own()),
}


def outputs_and_gradients(layer, x, run):
    """Return the outputs of `run`, then the gradients of the rows and of every parameter."""
    x = x.clone().requires_grad_()
    out = run(x)
    slopes = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return out, *torch.autograd.grad((out * slopes).sum(), (x, *layer.parameters()))


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", [*MASKED, *BY_DOCUMENT])
def test_one_masked_call_equals_each_document_alone(name, short, monkeypatch):
    """Documents of 11, 1 and 7, then of 19, or many short ones: by mask, by groups, and one at a time."""
    torch.manual_seed(0)
    layer, x = (MASKED | BY_DOCUMENT)[name]().double(), torch.randn(2, 19, 12).double()
    lengths = [2, 5, 1, 4, 7, 3, 3, 13] if short else [11, 1, 7, 19]
    starts = rows_of(*lengths, time=19)

    def alone(x):
        parts = [layer(document[None], causal=True)[0] for document in x.flatten(0, 1).split(lengths)]
        return torch.cat(parts).view_as(x)

    found = []
    for masked_on in ("cpu", "cuda"):
        monkeypatch.setattr(packing_module, "MASK_DEVICE", masked_on)
        packing = pack_documents(starts)
        found.append(outputs_and_gradients(layer, x, lambda x, p=packing: layer(x, causal=True, packing=p)))
        assert ("document_mask" in packing._cache) == (masked_on == "cpu" and name in MASKED)
    for expected, *others in zip(outputs_and_gradients(layer, x, alone), *found, strict=True):
        bound = 1e-12 * max(float(expected.detach().abs().max()), 1)
        for other in others:
            torch.testing.assert_close(other, expected, rtol=0, atol=bound)


def test_every_relative_scheme_is_tested():
    """A new scheme for heads must declare `relative`, and be tested above."""
    for_heads = {name for name in schemes if schemes[name].role_for(Softmax.accepts) not in ("input", None)}
    tried = {make().positions.kind for make in MASKED.values() if make().positions is not None}
    assert {name for name in for_heads if schemes[name].relative} == tried == {"rope", "alibi", "t5", "shaw"}


@pytest.mark.parametrize(
    ("rows", "time", "heads", "fits"),
    [(1, 2048, 1, True), (1, 2049, 1, False), (32, 2048, 1, True), (33, 2048, 1, False), (17, 2048, 2, False)],
)
def test_masks_are_preferred_on_gpus_for_short_rows(rows, time, heads, fits, monkeypatch):
    packing = Packing.from_tensors([torch.zeros(rows, time, dtype=torch.long), *torch.zeros(2, 1, dtype=torch.long)])
    assert not packing.prefers_mask(heads)
    monkeypatch.setattr(packing_module, "MASK_DEVICE", "cpu")
    assert packing.prefers_mask(heads) == fits


def test_a_bias_needs_one_mask_per_head(monkeypatch):
    """2 rows of 5 tokens are 50 pairs, and 150 for 3 heads."""
    monkeypatch.setattr(packing_module, "MASK_DEVICE", "cpu")
    monkeypatch.setattr(packing_module, "MAX_MASKED_PAIRS", 149)
    for positions, masked in ((Rope(), True), (Alibi(3), False)):
        packing = pack_documents(rows_of(2, 3, 5, time=5))
        MultiHead(12, 3, Softmax(), positions)(torch.randn(2, 5, 12), causal=True, packing=packing)
        assert ("document_mask" in packing._cache) == masked


def test_autocast_with_a_document_mask_equals_plain_rows(monkeypatch):
    """The output dtype is the same, and the first document equals that document alone."""
    monkeypatch.setattr(packing_module, "MASK_DEVICE", "cpu")
    layer, x = MultiHead(12, 3, Softmax(), Rope()), torch.randn(1, 5, 12)
    with torch.autocast("cpu", torch.float16):
        packed, plain = layer(x, causal=True, packing=pack_documents(rows_of(3, 2, time=5))), layer(x, causal=True)
    assert packed.dtype == plain.dtype
    torch.testing.assert_close(packed[:, :3], plain[:, :3], rtol=0, atol=4e-3)
