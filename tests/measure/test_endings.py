"""What follows the convolutions of a ResNet, as the times of their kernels have to count it."""

import torch
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.measure.variants import adds_shortcut
from sparsefront.models.resnet50 import ResNet50


def test_of_a_resnet():
    net = ResNet50(small_images=True).build(DataInfo("image_classification", 10, 16, 3)).eval()
    found = adds_shortcut(net)
    assert found["conv1"] is False
    block = {name.removeprefix("layer2.0."): added for name, added in found.items() if name.startswith("layer2.0.")}
    assert block == {"conv1": False, "conv2": False, "conv3": True}, "the shortcut's own convolution comes after conv3"
    assert sum(found.values()) == 16


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.read_twice, self.no_relu, self.relu = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x):
        y = self.read_twice(x)
        y = self.no_relu(y.relu() + y)
        return torch.relu(self.relu(y))


def test_only_what_alone_reads_it():
    assert adds_shortcut(Other().eval()) == {"relu": False}
