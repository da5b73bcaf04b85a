import pytest
import torch

from qkv.attention import Additive, Elu, Linear, Softmax, Taylor, kinds
from qkv.layers import MultiHead
from qkv.positions import T5, Alibi, Learned, Positions, Rope, Shaw, Sinusoidal, schemes

# written down by hand: which scheme serves which kind
SERVES = {
    "sinusoidal": {"softmax", "additive", "linear", "elu", "taylor"},
    "learned": {"softmax", "additive", "linear", "elu", "taylor"},
    "rope": {"softmax", "linear", "taylor"},
    "alibi": {"softmax", "additive", "linear", "elu", "taylor"},
    "t5": {"softmax", "additive"},
    "shaw": {"softmax"},
}
OURS = ("softmax", "additive", "linear", "elu", "taylor")


@pytest.mark.parametrize("scheme", SERVES)
def test_which_kinds_a_scheme_serves(scheme):
    assert {kind for kind in OURS if schemes[scheme].serves(kinds[kind].accepts)} == SERVES[scheme]


@pytest.mark.parametrize("positions", [T5(2, bidirectional=True), Shaw(4)])
@pytest.mark.parametrize("attention", [Linear(), Elu(), Taylor()])
def test_impossible_pairs_raise(positions, attention):
    message = rf"positions '{positions.kind}' give a bias, which attention kind '{attention.kind}' does not.*use alibi"
    with pytest.raises(ValueError, match=message):
        MultiHead(8, 2, attention, positions)


@pytest.mark.parametrize(("positions", "attention"), [(Rope(), Elu()), (Rope(), Additive(4)), (Shaw(4), Additive(4))])
def test_more_impossible_pairs(positions, attention):
    with pytest.raises(ValueError, match=f"'{positions.kind}'.*'{attention.kind}'"):
        MultiHead(8, 2, attention, positions)


@pytest.mark.parametrize("positions", [Sinusoidal(8), Learned(8, 5)])
def test_input_positions_belong_to_the_model(positions):
    with pytest.raises(ValueError, match=f"'{positions.kind}' are added to the model's input"):
        MultiHead(8, 2, Softmax(), positions)


def test_methods_a_scheme_lacks_raise():
    q, index = torch.zeros(1, 2, 3, 4), torch.arange(3)
    with pytest.raises(NotImplementedError, match="'alibi' give no rotation"):
        Alibi(2).rotate(q, index)
    with pytest.raises(NotImplementedError, match="'rope' give no bias"):
        Rope().bias(q, index, index)
    with pytest.raises(NotImplementedError, match="'rope' give no decay"):
        Rope().decay(q)


@pytest.mark.parametrize("apply", [Sinusoidal(8), Learned(8, 5), Rope().rotate])
@pytest.mark.parametrize("index", [torch.arange(1), torch.arange(4), torch.zeros(3, 5, dtype=torch.long)])
def test_bad_input_index_needs_one_position_per_token(apply, index):
    x = torch.zeros(2, 5, 8)  # rope rotates any (..., time, dim)
    with pytest.raises(ValueError, match=r"index must hold .* shape \(time,\) = \(5,\) or \(batch, time\), got"):
        apply(x, index)


@pytest.mark.parametrize(("apply", "axes"), [(Sinusoidal(8), ()), (Learned(8, 9), ()), (Rope().rotate, (3,))])
def test_each_row_may_have_positions_of_its_own(apply, axes):
    x, index = torch.randn(2, *axes, 5, 8), torch.stack((torch.arange(5), torch.arange(4, 9)))
    rows = torch.cat([apply(x[row : row + 1], index[row]) for row in range(2)])
    assert torch.equal(apply(x, index), rows)


def test_an_unregistered_scheme_is_named_by_its_class():
    class Nowhere(Positions):
        gives = frozenset({"bias"})

        @classmethod
        def from_sizes(cls, sizes):
            return cls()

    with pytest.raises(ValueError, match="positions 'Nowhere' give a bias"):
        MultiHead(8, 2, Linear(), Nowhere())


def test_repr_shows_options_that_are_not_default():
    assert repr(Rope()) == "Rope()"
    assert repr(Rope(base=500.0)) == "Rope(base=500.0)"
