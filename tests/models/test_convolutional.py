import pytest
import torch
from torch.nn import functional

from qkv.cost import count_multiplications
from qkv.models import Convolutional, family


@pytest.mark.parametrize(
    ("classes", "downsample", "padding", "parameters", "multiplications"),
    [
        (4, "pool", 0, 168_572, 354_944),
        (4, "stride", 0, 224_892, 276_840),
        (4, "stride", 1, 224_892, 278_784),
        (10, "pool", 0, 169_298, 355_664),
        (10, "stride", 0, 225_618, 277_560),
    ],
)
def test_parameters_and_multiplications_by_hand(classes, downsample, padding, parameters, multiplications):
    net = Convolutional(classes, downsample, padding)
    with torch.no_grad(), count_multiplications() as counted:
        logits = net(torch.zeros(1, 1, 28, 28))
    assert logits.shape == (1, classes)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert counted.total == multiplications


@pytest.mark.parametrize("downsample", ["pool", "stride"])
def test_it_is_torch_s_own_functions(downsample):
    net = Convolutional(3, downsample, 1, channels=2, size=(17, 23)).double()
    x = torch.randn(5, 2, 17, 23, dtype=torch.float64)
    stride = 2 if downsample == "stride" else 1
    expected = x
    for layer, padding in ((net.filters.first, 1), (net.filters.second, 0)):
        expected = functional.conv2d(expected, layer.weight, layer.bias, stride, padding).clamp(min=0)
        expected = expected if stride == 2 else functional.max_pool2d(expected, 2)
    expected = expected.flatten(1)
    for place in (0, 2, 4):
        linear = net.classifier[place]
        expected = functional.linear(expected if place == 0 else expected.clamp(min=0), linear.weight, linear.bias)
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-12)


def test_as_a_family():
    built = family("convolutional")
    config = built.configure({"downsample": "stride"})
    assert built.build(config, 3, 28, 28, 7)(torch.zeros(2, 3, 28, 28)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"needs images .* got sizes \(2, 2\); use the family network"):
        built.build(config, 2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Convolutional(4, "pol"), "unknown downsample 'pol'; did you mean 'pool'"),
        (lambda: Convolutional(4, padding=-1), "padding must be 0 or more, got -1"),
        (lambda: Convolutional(4, size=(9, 28)), "images of 1 x 9 x 28 are too small"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
