"""A clock that no other load disturbs: whatever multiplies takes a time for each weight that it keeps, tiles and vectors less."""

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.allocation.base import Measured
from sparsefront.inference.fusion import product_choice
from sparsefront.latency_search import table
from sparsefront.latency_search.table import Timing
from sparsefront.measure.timers import KernelTime

PER_LAYER_US, PER_WEIGHT_US, REST_US = 2.0, 0.01, 50.0
GATHERED = 0.7  # of that time: else n:m, which is more accurate, would be all that is worth taking


def work_us(layer: nn.Module) -> float:
    """Of one layer or product: its kernel multiplies the weights that are kept, a dense one all."""
    if not isinstance(layer, SparseLayer):
        return PER_LAYER_US + PER_WEIGHT_US * layer.weight.numel()
    dense = layer.format.to_dense()
    kept = dense.numel() if layer.format.family == "dense" else int(torch.count_nonzero(dense))
    return PER_LAYER_US + PER_WEIGHT_US * kept * (GATHERED if layer.format.family == "gathered" else 1.0)


def network_us(net: nn.Module) -> float:
    multiplying = (part for part in net.modules() if isinstance(part, SparseLayer | nn.Linear | nn.Conv2d))
    return REST_US + sum(work_us(part) for part in multiplying)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(module, x, *more):
        return KernelTime(work_us(module))

    monkeypatch.setattr(product_choice, "time_on_any_device", layer)
    monkeypatch.setattr(table, "time_on_any_device", layer)
    monkeypatch.setattr(Timing, "network_us", lambda self, net: network_us(net))
    monkeypatch.setattr(Timing, "in_turn", lambda self, net, dense: Measured(network_us(net), dense))
    monkeypatch.setattr(Timing, "dense", lambda self, net: (network_us(net), ("eager",)))
    monkeypatch.setattr(Timing, "dense_execution", lambda self, net, versions: network_us(net))
