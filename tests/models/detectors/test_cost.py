"""What a picture costs: the products of the backbone and of the regions, counted and by hand."""

import pytest
import torch

from qkv.cost import count_multiplications
from qkv.models.detectors import RCNN, FastConfig, FasterConfig, FasterRCNN, FastRCNN, RCNNConfig
from qkv.models.detectors.backbone import SmallBackbone

CLASSES, HIDDEN, POOL, CHANNELS = 3, 8, 5, 64


def count(call):
    with torch.no_grad(), count_multiplications() as counted:
        call()
    return counted.total


def backbone_products(side):
    return count(lambda: SmallBackbone()(torch.zeros(1, 3, side, side)))


def hidden_products():
    return CHANNELS * POOL**2 * HIDDEN + HIDDEN**2


@pytest.mark.parametrize("proposals", [1, 7])
def test_fast_shares_the_backbone_among_regions(proposals):
    model = FastRCNN(FastConfig(hidden_dim=HIDDEN, pool=POOL), CLASSES)
    found = count(lambda: model(torch.zeros(1, 3, 96, 96), torch.zeros(1, proposals, 4)))
    per_region = hidden_products() + HIDDEN * (CLASSES + 1) + HIDDEN * 4 * CLASSES
    assert found == backbone_products(96) + proposals * per_region


@pytest.mark.parametrize("proposals", [1, 7])
def test_rcnn_runs_the_backbone_for_every_region(proposals):
    model = RCNN(RCNNConfig(hidden_dim=HIDDEN, pool=POOL), CLASSES)
    found = count(lambda: model(torch.zeros(1, 3, 96, 96), torch.zeros(1, proposals, 4)))
    per_region = backbone_products(model.crop) + hidden_products() + HIDDEN * CLASSES + HIDDEN * 4 * CLASSES
    assert found == proposals * per_region


def test_faster_adds_the_proposal_network_to_fast():
    model = FasterRCNN(FasterConfig(hidden_dim=HIDDEN, pool=POOL, anchors=2), CLASSES)
    plain = FastRCNN(FastConfig(hidden_dim=HIDDEN, pool=POOL), CLASSES)
    inputs = torch.zeros(1, 3, 96, 96), torch.zeros(1, 4, 4)
    cells = 24 * 24
    network = cells * (9 * CHANNELS**2 + CHANNELS * 2 * 5)
    assert count(lambda: model(*inputs)) == count(lambda: plain(*inputs)) + network
