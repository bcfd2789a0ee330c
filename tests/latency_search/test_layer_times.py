"""What no kernel can stand in for has a time where it is dense alone."""

import torch
from sparsefront_kernels import Problem
from torch import nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.latency_search.table import Timing, layer_time
from sparsefront.measure.problems import LayerInput
from sparsefront.measure.settings import Measure


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_with_a_forward_of_their_own_are_dense(clock):
    net = nn.Sequential(Doubled(16, 16))
    received = LayerInput(Problem(m=4, k=16, n=16, dtype=torch.float32, device=torch.device("cpu")), (4, 16))
    timing = Timing({"input": torch.randn(4, 16)}, torch.float32, Measure(device="cpu"), KernelChoice())
    assert layer_time(net, "0", received, None, (None, 0.0), timing).kernel == "dense_linear"
    assert layer_time(net, "0", received, None, (0, 0.5), timing) is None
