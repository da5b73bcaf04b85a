import pytest
import torch

from qkv.cli.shared.device import choose_device


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "--device 'tpu': expected cpu, cuda or mps"),
        ("cuda", "--device cuda: no CUDA device available"),
        ("mps", "--device mps: no MPS device available"),
    ],
)
def test_bad_input_names_the_devices(name, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        choose_device(name)


def test_mps_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == "mps"
