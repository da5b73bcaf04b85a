import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from qkv.positions import T5


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000)])
def test_buckets_are_those_of_transformers(bidirectional, buckets, max_distance):
    offset = torch.arange(-1500, 1501)
    expected = T5Attention._relative_position_bucket(offset, bidirectional, buckets, max_distance)
    positions = T5(3, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    assert torch.equal(positions.bucket(offset), expected)


def test_bias_is_the_table_at_the_bucket():
    positions = T5(3, bidirectional=True)
    bias = positions.bias(torch.zeros(2, 3, 5, 4), torch.arange(10, 15), torch.arange(7))
    assert bias.shape == (1, 3, 5, 7)
    bucket = positions.bucket(torch.tensor(6 - 11))
    assert torch.equal(bias[0, :, 1, 6], positions.table.weight[bucket])


def test_bad_input():
    with pytest.raises(ValueError, match="q has 2 heads, but t5 was built for 3"):
        T5(3, bidirectional=True).bias(torch.zeros(1, 2, 5, 4), torch.arange(5), torch.arange(5))
    with pytest.raises(ValueError, match="max_distance=4 must exceed 8"):
        T5(3, bidirectional=True, max_distance=4)
