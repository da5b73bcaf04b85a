import torch

from qkv.attention.internal.kv_buffer import KVBuffer


def buffer():
    keys, values = torch.arange(30.0).view(1, 2, 3, 5), torch.arange(42.0).view(1, 2, 3, 7)
    return KVBuffer(keys, values, 11)


def test_tokens_are_kept_and_written_behind():
    found = buffer()
    found.write(torch.full((1, 2, 2, 5), 8.0), torch.full((1, 2, 2, 7), 9.0), 3)
    assert found.capacity == 11
    assert torch.equal(found.keys[:, :, :3], torch.arange(30.0).view(1, 2, 3, 5))
    assert found.keys[:, :, 3:5].unique().tolist() == [8]
    assert found.values[:, :, 3:5].unique().tolist() == [9]


def test_a_state_is_intact_until_a_rewind_goes_below_its_end():
    found = buffer()
    assert found.is_intact(0, 3)
    found.rewind(2)
    assert (found.is_intact(0, 2), found.is_intact(0, 3)) == (True, False)
    assert found.is_intact(found.era, 11)
    found.rewind(7)
    assert (found.is_intact(0, 3), found.is_intact(1, 7), found.is_intact(1, 8)) == (False, True, False)
