"""Boxes: IoU by counting cells, encoding and its inverse."""

import math

import pytest
import torch

from qkv.models.regions import box_area, clip_boxes, decode_boxes, encode_boxes, generalized_iou, iou


def random_boxes(*shape, seed=0, size=40.0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    corner = torch.rand(*shape, 2, generator=g, dtype=dtype) * size
    return torch.cat([corner, corner + 0.5 + torch.rand(*shape, 2, generator=g, dtype=dtype) * size / 2], -1)


def cells(box, size=16):
    x1, y1, x2, y2 = (int(x) for x in box)
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[y1:y2, x1:x2] = True
    return mask


def test_iou_counts_unit_cells():
    g = torch.Generator().manual_seed(3)
    corners = torch.randint(0, 8, (60, 2), generator=g)
    boxes = torch.cat([corners, corners + torch.randint(0, 8, (60, 2), generator=g)], 1).double()
    found = iou(boxes[:25], boxes[25:])
    for i in range(25):
        for j in range(35):
            a, b = cells(boxes[i]), cells(boxes[25 + j])
            union = (a | b).sum().item()
            assert found[i, j].item() == pytest.approx((a & b).sum().item() / union if union else 0.0, abs=1e-15)


def test_iou_of_a_box_with_itself_is_one_and_batches():
    boxes = random_boxes(3, 7)
    found = iou(boxes, boxes)
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2), torch.ones(3, 7, dtype=torch.float64))
    torch.testing.assert_close(found[1], iou(boxes[1], boxes[1]), rtol=0, atol=0)


def test_generalized_iou_of_disjoint_boxes_has_a_gradient():
    a = torch.tensor([[0.0, 0.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[3.0, 0.0, 4.0, 1.0]], dtype=torch.float64)
    found = generalized_iou(a, b)  # hull 4, union 2
    assert found.item() == -0.5
    found.sum().backward()
    assert a.grad.abs().sum() > 0
    assert torch.autograd.gradcheck(
        lambda x: generalized_iou(x, random_boxes(5, seed=2)), random_boxes(4).requires_grad_()
    )


def test_empty_boxes_have_no_overlap_and_finite_gradients():
    empty = torch.tensor([[2.0, 2.0, 2.0, 2.0]], requires_grad=True)
    for overlap in (iou, generalized_iou):
        found = overlap(empty, empty)
        assert found.item() == 0
        (grad,) = torch.autograd.grad(found.sum(), empty)
        assert grad.isfinite().all()
    assert box_area(torch.tensor([[5.0, 5.0, 3.0, 9.0]])).item() == 0


def test_decode_inverts_encode():
    boxes, anchors = random_boxes(2, 11, seed=4), random_boxes(2, 11, seed=5)
    torch.testing.assert_close(decode_boxes(encode_boxes(boxes, anchors), anchors), boxes, rtol=1e-12, atol=1e-12)
    anchor = torch.tensor([[0.0, 0.0, 10.0, 20.0]])
    box = torch.tensor([[1.0, 2.0, 21.0, 22.0]])  # center (11, 12) against (5, 10), size (20, 20) against (10, 20)
    found = encode_boxes(box, anchor, (1.0, 1.0))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.1, math.log(2), 0.0]]))


def test_decode_is_finite_for_huge_offsets():
    found = decode_boxes(torch.full((1, 4), 1e6), torch.tensor([[0.0, 0.0, 8.0, 8.0]]))
    assert found.isfinite().all()


def test_clip_to_one_size_and_to_one_size_per_picture():
    boxes = torch.tensor([[[-3.0, 1.0, 50.0, 60.0]], [[-3.0, 1.0, 50.0, 60.0]]])
    assert clip_boxes(boxes[0], 20, 30).tolist() == [[0.0, 1.0, 30.0, 20.0]]
    found = clip_boxes(boxes, torch.tensor([[20.0], [70.0]]), torch.tensor([[30.0], [40.0]]))
    assert found.tolist() == [[[0.0, 1.0, 30.0, 20.0]], [[0.0, 1.0, 40.0, 60.0]]]
