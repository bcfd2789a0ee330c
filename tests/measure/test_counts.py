"""What is counted rather than timed: bytes, flops, zeros, and the roofline bound."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.linear import SparseLinear
from torch import nn

from sparsefront.measure.memory import (
    achieved_sparsity,
    dense_layer_bytes,
    peak_memory_bytes,
    resident_bytes,
    weight_bytes,
)
from sparsefront.measure.problems import (
    MeasuredRates,
    roofline_bound_us,
    roofline_fraction,
    theoretical_dense_flops,
)

CPU = torch.device("cpu")


def test_weight_bytes_counts_shared_tensors_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    net[1].weight = net[0].weight
    norm = 4 * 4 * 4 + 8  # weight, bias, mean and variance in fp32, an int64 counter
    assert weight_bytes(net) == 64 + norm
    assert weight_bytes(net, torch.float16) == 32 + norm // 2 + 4


def test_weight_bytes_of_a_compressed_layer_are_its_formats():
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, :2] = True
    stored = FORMATS["gathered"].from_dense(torch.randn(8, 8), mask, tile=8)
    layer = SparseLinear(entry("gathered_reference"), stored, torch.zeros(8))
    assert weight_bytes(nn.Sequential(layer)) == stored.nbytes + 8 * 4 < 8 * 8 * 4


def compressed(pack):
    """A layer whose kernel reads what `pack` makes of its format."""
    mask = torch.ones(8, 8, dtype=torch.bool)
    stored = FORMATS["gathered"].from_dense(torch.randn(8, 8), mask, tile=8)
    return SparseLinear(replace(entry("gathered_reference"), pack=pack), stored, torch.zeros(8)), stored


def test_resident_bytes_count_what_a_kernel_packed():
    read_as_it_is, stored = compressed(lambda stored: stored)
    assert resident_bytes(read_as_it_is, CPU) == stored.nbytes + 8 * 4
    packed, stored = compressed(lambda stored: {"panels": [stored.values.clone()], "values": stored.values})
    assert resident_bytes(packed, CPU) == stored.nbytes + stored.values.nbytes + 8 * 4
    assert weight_bytes(packed) == stored.nbytes + 8 * 4


def test_resident_bytes_count_storages_on_the_device_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    net[1].weight = net[0].weight
    assert resident_bytes(net, CPU) == weight_bytes(net)
    net[0].weight = nn.Parameter(torch.zeros(100)[:16].view(4, 4))
    net[1].weight = net[0].weight
    assert resident_bytes(net, CPU) == weight_bytes(net) + (100 - 16) * 4  # a view keeps all that is behind it
    net[2].elsewhere = torch.zeros(1000, device="meta")
    assert resident_bytes(net, CPU) == weight_bytes(net) + (100 - 16) * 4


def test_layers_that_hold_their_weight_dense_are_named():
    layer, _ = compressed(lambda stored: stored)
    net = nn.ModuleDict({"a": layer, "b": nn.Conv2d(2, 2, 1), "c": nn.Linear(3, 5), "head": nn.Linear(2, 2)})
    assert dense_layer_bytes(net, ["a", "b", "c"]) == {"b": 4 * 4, "c": 15 * 4}


def problem(m, k, n):
    return Problem(m=m, k=k, n=n, dtype=torch.float32, device=CPU)


def test_flops_are_two_per_weight_and_row():
    assert theoretical_dense_flops(problem(3, 4, 5)) == 120
    assert theoretical_dense_flops(problem(1, 2, 2)) == 8


@pytest.fixture
def net():
    return nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Conv2d(1, 2, 2, bias=False), "head": nn.Linear(2, 1)})


def test_dense_layers_count_in_the_sparsity(net):
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    found = achieved_sparsity(net, {"a": mask}, ["a", "b"])
    assert found.layers == {"a": 0.625, "b": 0.0}
    assert found.weight_shares == {"a": 0.5, "b": 0.5}
    assert found.sparsity_achieved == 5 / 16
    assert found.sparsity_whole_model == 5 / (8 + 2 + 8 + 3)


def test_masks_must_fit(net):
    with pytest.raises(ValueError, match="mask of b has 4 elements, its weight 8"):
        achieved_sparsity(net, {"b": torch.ones(4, dtype=torch.bool)}, ["a", "b"])
    with pytest.raises(ValueError, match="not prunable: head"):
        achieved_sparsity(net, {"head": torch.ones(2, dtype=torch.bool)}, ["a"])


RATES = MeasuredRates(copy_gb_per_s=1000.0, dense_tflop_per_s=100.0)


def test_the_roofline_bound_is_the_slower_of_computing_and_moving():
    large = Problem(m=4096, k=4096, n=4096, dtype=torch.float16, device=CPU)
    computing = roofline_bound_us(large, density=0.5, weight_bytes=2**24, rates=RATES)
    assert computing == pytest.approx(2 * 4096**3 * 0.5 / 100e12 * 1e6)
    single = Problem(m=1, k=4096, n=4096, dtype=torch.float16, device=CPU)
    moving = roofline_bound_us(single, density=0.5, weight_bytes=2**24, rates=RATES)
    assert moving == pytest.approx((2**24 + 2 * 8192) / 1000e9 * 1e6)
    assert roofline_fraction(single, latency_us=2 * moving, density=0.5, weight_bytes=2**24, rates=RATES) == 0.5


@pytest.mark.gpu
def test_peak_memory_does_not_count_what_else_lies_on_the_gpu():
    layer = nn.Linear(1024, 1024, bias=False, device="cuda")
    x = torch.randn(4096, 1024, device="cuda")
    alone = peak_memory_bytes(layer, {"input": x})
    other = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert peak_memory_bytes(layer, {"input": x}) == alone
    assert alone >= layer.weight.nbytes + x.nbytes  # the output is as large as x
    del other
