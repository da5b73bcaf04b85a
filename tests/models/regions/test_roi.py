"""RoI pooling and alignment: fast form = definition = ONNX Runtime, values and gradients."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.models.regions import roi_align, roi_align_by_definition, roi_pool, roi_pool_by_definition

from .test_boxes import random_boxes

FORMS = {
    "pool": (roi_pool, roi_pool_by_definition, 3),
    "align by grid": (roi_align, roi_align_by_definition, 3),
    "align by bags": (roi_align, roi_align_by_definition, 17),
}
"""Fast form, definition, channels."""


def features(dtype=torch.float64, shape=(2, 3, 11, 13)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def regions(dtype=torch.float64, seed=1):
    """Regions of a picture of 104 x 88 pixels (stride 8): inside, across the edges, tiny, and one cell wide."""
    odd = torch.tensor([[-9.0, -5.0, 200.0, 150.0], [40.0, 40.0, 40.1, 40.1], [0.0, 0.0, 3.0, 88.0]], dtype=dtype)
    return torch.cat([random_boxes(2, 17, seed=seed, size=60.0, dtype=dtype), odd.expand(2, 3, 4)], 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_fast_form_equals_definition(form, size):
    fast, law, channels = FORMS[form]
    x, y = (features(shape=(2, channels, 11, 13)).requires_grad_() for _ in range(2))
    found, expected = fast(x, regions(), size, 1 / 8), law(y, regions(), size, 1 / 8)
    assert found.shape == (2, 20, channels, size, size)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    x = features(shape=(1, FORMS[form][2], 5, 4)).requires_grad_()
    rois = random_boxes(1, 3, seed=3, size=20.0)
    assert torch.autograd.gradcheck(lambda x: FORMS[form][0](x, rois, 2, 1 / 8), x, atol=1e-6)


def test_pool_takes_the_maximum_of_cells():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    whole = torch.tensor([[[0.0, 0.0, 3.0, 3.0]]])
    assert roi_pool(x, whole, 2, 1.0).flatten().tolist() == [5.0, 7.0, 13.0, 15.0]


class CountMaxima(TorchDispatchMode):
    """Counts calls of torch.maximum."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.maximum.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("cells", "levels"), [(7, 1), (14, 2), (28, 3)])
def test_pool_computes_only_windows_up_to_the_largest_bin(cells, levels):
    x, rois = torch.randn(1, 2, 64, 64), torch.tensor([[[3.0, 3.0, cells + 2.0, cells + 2.0]]])
    with CountMaxima() as calls:
        roi_pool(x, rois, 7, 1.0)
    assert calls.count == levels * levels - 1 + 3  # all but the map itself, and four windows per bin


def test_align_of_a_ramp_is_the_ramp_at_the_bin_centers():
    x = torch.arange(8.0).expand(1, 1, 8, 8)  # value = column
    rois = torch.tensor([[[16.0, 16.0, 48.0, 48.0]]])  # cells 2 to 6 at stride 8; half-pixel centers
    found = roi_align(x, rois, 2, 1 / 8)
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([[2.5, 4.5], [2.5, 4.5]]))


@pytest.mark.parametrize("form", FORMS)
def test_no_regions(form):
    fast, _, channels = FORMS[form]
    x = features(shape=(2, channels, 11, 13))
    assert fast(x, torch.zeros(2, 0, 4, dtype=torch.float64), 3, 1 / 8).shape == (2, 0, channels, 3, 3)


def test_a_region_of_nan_has_features_of_nan_and_leaves_the_others_alone():
    x, rois = features(shape=(2, 17, 11, 13)), regions()
    expected = roi_align(x, rois, 2, 1 / 8)
    rois[0, 1] = torch.nan
    found = roi_align(x, rois, 2, 1 / 8)
    assert bool(found[0, 1].isnan().all())
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0, 2:], expected[0, 2:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, 7])
def test_equals_onnx_runtime(form, size):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    # inside of the picture: outside, ONNX gives 0 and we repeat the edge
    x, rois = (
        features(torch.float32, (2, FORMS[form][2], 11, 13)),
        random_boxes(2, 50, seed=4, size=50.0, dtype=torch.float32),
    )
    flat = rois.flatten(0, 1)
    index = torch.arange(2).repeat_interleave(50)
    make, kinds = onnx.helper, onnx.TensorProto
    names = [("x", kinds.FLOAT, x.numpy())]
    if form.startswith("pool"):
        names.append(("rois", kinds.FLOAT, torch.cat([index[:, None].float(), flat], 1).numpy()))
        node = make.make_node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[size, size], spatial_scale=1 / 8)
    else:
        names += [("rois", kinds.FLOAT, flat.numpy()), ("index", kinds.INT64, index.numpy())]
        node = make.make_node(
            "RoiAlign", ["x", "rois", "index"], ["y"], output_height=size, output_width=size, sampling_ratio=2,
            spatial_scale=1 / 8, mode="avg", coordinate_transformation_mode="half_pixel",
        )  # fmt: skip
    inputs = [make.make_tensor_value_info(name, kind, value.shape) for name, kind, value in names]
    graph = make.make_graph([node], "g", inputs, [make.make_tensor_value_info("y", kinds.FLOAT, None)])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 16)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {name: value for name, _, value in names})
    found = FORMS[form][0](x, rois, size, 1 / 8).flatten(0, 1)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
