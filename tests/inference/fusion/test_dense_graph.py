"""The fused dense graph is a copy, and says where there is none."""

import copy

import pytest
import torch
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.measure.correctness import output_error
from sparsefront.measure.variants import DoesNotApply
from sparsefront.models.resnet50 import ResNet50
from sparsefront.models.vit_small import VitSmall

IMAGES = DataInfo("image_classification", 10, 16, 3)


def test_network_stays_beside_its_copy():
    net = VitSmall(dim=64, depth=2).build(IMAGES).eval()
    before, inputs = copy.deepcopy(net.state_dict()), {"x": torch.randn(2, 3, 16, 16)}
    fused = make_dense_graph(net, inputs)
    assert all(isinstance(block, FusedBlock) for block in fused.blocks)
    assert not any(isinstance(part, FusedBlock) for part in net.modules())
    with torch.inference_mode():
        assert output_error(fused(**inputs), net(**inputs)) < 1e-5
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_network_without_encoder_blocks():
    with pytest.raises(DoesNotApply, match="no encoder blocks"):
        make_dense_graph(ResNet50(small_images=True).build(IMAGES).eval(), {"x": torch.randn(2, 3, 16, 16)})
    with pytest.raises(DoesNotApply, match="no encoder blocks"):
        make_dense_graph(nn.Sequential(nn.Linear(4, 4)), {"input": torch.randn(2, 4)})
