import pytest
import torch

from qkv.inference.batching.row_sizes import SHORTEST, RowSizes
from tests.inference.batching.requests import small

LONGEST = 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "attention", ["taylor", "delta+forget+write+convolution", "linear,softmax", "softmax(window=100)"]
)
def test_the_bytes_of_a_state_are_known_before_it_exists(attention, dtype):
    model = small(attention, "none", dtype, max_length=LONGEST)
    sizes = RowSizes(model)
    for places in sizes.levels:
        state = model.start(torch.randint(0, 29, (3, places)), None)
        assert state.bytes == 3 * sizes.bytes_for(places)


def test_sums_have_one_size():
    sizes = RowSizes(small("taylor", max_length=LONGEST))
    assert not sizes.grows
    assert [sizes.places_for(length) for length in (1, 37, LONGEST)] == [LONGEST] * 3


def test_each_level_of_a_kv_cache_takes_half_the_bytes_of_the_next():
    sizes = RowSizes(small("softmax", max_length=LONGEST))
    assert sizes.grows
    assert sorted(sizes.levels) == [37, 75, 150, 300]
    assert [sizes.places_for(length) for length in (1, 37, 38, 75, 151, 300)] == [37, 37, 75, 75, 300, 300]
    assert min(sizes.levels) >= SHORTEST


def test_a_window_has_no_more_levels_than_it_saves_bytes():
    """All lengths above the window take as much."""
    assert sorted(RowSizes(small("softmax(window=100)", max_length=LONGEST)).levels) == [37, 300]
