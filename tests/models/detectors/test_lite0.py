"""EfficientNet-Lite0: against ONNX Runtime, its padding, frozen normalization, and the pretrained weights."""

import copy
from hashlib import sha256

import pytest
import torch
from safetensors.torch import load
from torch import nn

from qkv.errors import QkvError
from qkv.models.detectors import lite0_weights
from qkv.models.detectors.backbone import BACKBONES, make_backbone
from qkv.models.detectors.frozen_norm import EPS, NormedConvolution, same_padding
from qkv.models.detectors.lite0 import Lite0, Lite0Backbone
from qkv.models.detectors.lite0_weights import convert, read_lite0_weights

from .lite0_onnx import lite0_session


def randomize_norms(module):
    """Give every normalization statistics and affine parameters that matter."""
    generator = torch.Generator().manual_seed(3)
    for part in module.modules():
        if isinstance(part, NormedConvolution):
            for tensor, low, high in (
                (part.norm.weight, 0.7, 1.3), (part.norm.bias, 0.0, 0.5),
                (part.norm.mean, -0.2, 0.2), (part.norm.variance, 0.7, 1.3),
            ):  # fmt: skip
                tensor.data.uniform_(low, high, generator=generator)
    return module


def pictures(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def original_names(model):
    """Return the state under the names of the published file."""
    layers = {
        "expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1"),
        "project": ("_project_conv", "_bn2"), "stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1"),
    }  # fmt: skip
    found = {}
    for name, value in model.state_dict().items():
        *path, last = name.split(".")
        last = {"mean": "running_mean", "variance": "running_var"}.get(last, last)
        prefix = f"_blocks.{path[1]}." if path[0] == "blocks" else ""
        layer = path[2] if prefix else path[0]
        if layer == "classifier":
            found[f"_fc.{last}"] = value
        else:
            found[f"{prefix}{layers[layer][path[-1] == 'norm']}.{last}"] = value
            if last == "running_mean":
                found[f"{prefix}{layers[layer][1]}.num_batches_tracked"] = torch.tensor(7)
    return found


def test_counts():
    assert sum(p.numel() for p in Lite0().parameters()) == 4_652_008
    assert sum(p.numel() for p in Lite0Backbone().parameters()) == 700_768
    assert len(original_names(Lite0())) == 296


def test_published_names_fit():
    model = randomize_norms(Lite0())
    converted = convert(original_names(model))
    assert converted.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(converted[name], value), name


@pytest.mark.parametrize("size", [(64, 64), (97, 70)])
def test_logits_equal_onnx_runtime(size):
    torch.manual_seed(0)
    model, x = randomize_norms(Lite0(classes=10)), pictures(2, 3, *size)
    (expected,) = lite0_session(model.state_dict(), EPS).run(None, {"pictures": x.numpy()})
    with torch.inference_mode():
        found = model(x)
    assert found.std() > 1e-2  # random weights must not hide a difference
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "total"),
    [(224, 3, 2, 1), (225, 3, 2, 2), (112, 5, 2, 3), (113, 5, 2, 4), (7, 5, 1, 4), (9, 1, 2, 0)],
)
def test_same_padding(size, kernel, stride, total):
    assert same_padding(size, kernel, stride) == total


@pytest.mark.parametrize(("size", "first"), [(6, 0), (7, -1)])
def test_the_odd_cell_of_padding_comes_last(size, first):
    """The first window starts at the first cell of an even map, and one cell before an odd one."""
    unit = NormedConvolution(1, 1, 3, stride=2)
    nn.init.ones_(unit.weight)
    position = torch.arange(float(size)).expand(1, 1, size, size) + 1
    expected = sum(range(max(first, 0) + 1, first + 4)) * (3 + min(first, 0))
    found = unit(position)
    assert found.shape[2:] == (-(-size // 2), -(-size // 2))
    torch.testing.assert_close(found[0, 0, 0, 0], torch.tensor(expected / (1 + EPS) ** 0.5))


@pytest.mark.parametrize("frozen", [0, 4])
def test_folded_equals_plain(monkeypatch, frozen):
    torch.manual_seed(0)
    model = randomize_norms(Lite0Backbone(pretrained=False, frozen_blocks=frozen)).double()
    x = pictures(2, 3, 33, 50).double()
    folded = model(x)
    folded.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == sum(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        kept = model(x)
    model.zero_grad(set_to_none=True)
    monkeypatch.setattr(NormedConvolution, "forward", NormedConvolution.plain)
    plain = model(x)
    plain.square().sum().backward()
    torch.testing.assert_close(folded, plain, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kept, plain, rtol=1e-9, atol=1e-9)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-7, atol=1e-7)


def test_plain_equals_batch_norm():
    unit, x = randomize_norms(NormedConvolution(3, 8, 3)), pictures(2, 3, 9, 9)
    nn.init.normal_(unit.weight)
    norm = nn.BatchNorm2d(8, eps=EPS).eval()
    norm.load_state_dict({
        "weight": unit.norm.weight, "bias": unit.norm.bias, "running_mean": unit.norm.mean,
        "running_var": unit.norm.variance, "num_batches_tracked": torch.tensor(0),
    })  # fmt: skip
    expected = norm(nn.functional.conv2d(x, unit.weight, padding=1))
    torch.testing.assert_close(unit.train()(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", ["weight", "norm", "load", "dtype", "assign", "copy"])
@torch.no_grad()
def test_kept_weights_follow_every_change(change):
    unit, x = NormedConvolution(3, 4, 3), pictures(1, 3, 8, 8)
    nn.init.normal_(unit.weight)
    before = unit(x)
    if change == "weight":
        unit.weight.mul_(2)
    elif change == "norm":
        unit.norm.weight.mul_(2)
    elif change == "load":
        unit.load_state_dict({name: value * 2 for name, value in unit.state_dict().items()})
    elif change == "dtype":
        unit, x = unit.double(), x.double()
    elif change == "assign":
        unit.weight = nn.Parameter(unit.weight * 2)
    else:
        unit = copy.deepcopy(unit)
        unit.weight.mul_(2)
    found = unit(x)
    torch.testing.assert_close(found, unit.plain(x), rtol=1e-5, atol=1e-5)
    assert bool((found.float() - before).abs().max() > 0.1) == (change != "dtype")


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        unit, x = NormedConvolution(3, 4, 3), pictures(1, 3, 8, 8)
        nn.init.normal_(unit.weight)
        torch.testing.assert_close(unit(x), unit.plain(x), rtol=1e-5, atol=1e-5)


def test_norms_are_frozen_in_training():
    model = randomize_norms(Lite0Backbone(pretrained=False)).train()
    fixed = {name: t.clone() for name, t in model.state_dict().items() if ".norm." in name}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = pictures(2, 3, 32, 32)
    trained = model(x)
    torch.testing.assert_close(trained[:1], model(x[:1]), rtol=1e-4, atol=1e-4)  # no statistics of the batch
    trained.sum().backward()
    optimizer.step()
    for name, before in fixed.items():
        assert torch.equal(model.state_dict()[name], before), name


def test_frozen_blocks_are_not_trained():
    model = Lite0Backbone(pretrained=False, frozen_blocks=3)
    model(pictures(1, 3, 32, 32)).sum().backward()
    trained = {name.split(".")[1] for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {"3", "4", "5", "6", "7", "8", "9", "10"}


def test_frozen_blocks_bad_input():
    with pytest.raises(ValueError, match=r"frozen_blocks=12 must be from 0 to 11"):
        Lite0Backbone(frozen_blocks=12)


@pytest.mark.parametrize("size", [(32, 48), (33, 47), (1, 100)])
def test_backbone_map_and_padding(size):
    """Zeros below and to the right change nothing: a picture has the same features in a padded batch."""
    torch.manual_seed(0)
    model = randomize_norms(make_backbone("lite0-random"))
    x = pictures(1, 3, *size)
    rows, columns = (-(-side // 16) for side in size)
    with torch.no_grad():
        found = model(x)
        whole = model(nn.functional.pad(x, (0, 16 * columns - size[1], 0, 16 * rows - size[0])))
    assert found.shape == (1, model.channels, rows, columns) == (1, 112, rows, columns)
    assert torch.equal(found, whole)


def test_random_weights_keep_the_variance():
    torch.manual_seed(0)
    with torch.no_grad():
        spread = Lite0Backbone(pretrained=False)(torch.randn(2, 3, 64, 64)).std()
    assert 0.2 < spread < 5


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setattr(lite0_weights, "read_archive_member", _refuse)
    return tmp_path


def _refuse(*_):
    raise AssertionError("downloaded")


def test_building_downloads_nothing(empty_cache):
    for name in BACKBONES:
        make_backbone(name)
    make_backbone("lite0-random").load_pretrained()
    assert not list(empty_cache.iterdir())
    with pytest.raises(AssertionError, match="downloaded"):
        make_backbone("lite0").load_pretrained()


def test_weights_are_converted_once(empty_cache, monkeypatch, tmp_path):
    torch.manual_seed(0)
    source = randomize_norms(Lite0())
    torch.save(original_names(source), tmp_path / "pickle")
    data = (tmp_path / "pickle").read_bytes()
    monkeypatch.setattr(lite0_weights, "MEMBER_SHA256", sha256(data).hexdigest())
    monkeypatch.setattr(lite0_weights, "read_archive_member", lambda *_: data)
    backbone = make_backbone("lite0")
    backbone.load_pretrained()
    assert torch.equal(backbone.blocks[10].project.weight, source.blocks[10].project.weight)
    monkeypatch.setattr(lite0_weights, "read_archive_member", _refuse)
    model = Lite0()
    model.load_pretrained()
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())
    file = empty_cache / "efficientnet-lite0" / "model.safetensors"
    assert load(file.read_bytes()).keys() == model.state_dict().keys()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError, match="downloaded"):  # damaged: converted again
        model.load_pretrained()


def test_a_different_pickle_bad_input(empty_cache, monkeypatch):
    monkeypatch.setattr(lite0_weights, "read_archive_member", lambda *_: b"cos\nsystem\n.")
    with pytest.raises(QkvError, match=r"efficientnet-lite0-57934424\.pth has sha256 \w+, not 5793"):
        read_lite0_weights()


def test_pretrained_weights():
    try:
        read_lite0_weights()
    except QkvError as error:
        pytest.skip(str(error))
    model = Lite0()
    model.load_pretrained()
    x = pictures(1, 3, 96, 96)
    (expected,) = lite0_session(model.state_dict(), EPS).run(None, {"pictures": x.numpy()})
    with torch.inference_mode():
        torch.testing.assert_close(model(x), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
