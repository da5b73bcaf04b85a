import torch

from qkv.attention import Softmax, Taylor
from qkv.explain import record_calls


def test_calls_hold_the_arguments():
    attention = Taylor(order=2).double()
    q, k, v = (torch.randn(2, 3, time, 5, dtype=torch.float64) for time in (7, 7, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    with record_calls([attention, attention]) as calls:
        output = attention(q, k, v=v, causal=True, mask=mask)
    assert len(calls) == 1
    assert calls[0].options == {"causal": True, "mask": mask}
    assert calls[0].output is output
    assert (calls[0].weights() @ v - output).abs().max() <= 1e-12


def test_no_calls_are_recorded_after_the_block():
    attention = Softmax()
    x = torch.randn(1, 1, 2, 3)
    with record_calls([attention]) as calls:
        attention(x, x, x)
    attention(x, x, x)
    assert len(calls) == 1
