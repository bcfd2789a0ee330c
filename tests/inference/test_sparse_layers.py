"""Layers that call kernels behave as the dense layers that they replace."""

import copy

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, entry
from sparsefront_kernels.linear import SparseLinear
from torch import nn

from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.pruning.layers import conv_unsupported_reason


def pruned(layer):
    """The layer with every third weight gone, and its weight as csr."""
    torch.manual_seed(0)
    layer = layer.eval().requires_grad_(False)
    mask = torch.arange(layer.weight.numel()).reshape(as_matrix(layer.weight).shape) % 3 != 0
    layer.weight.mul_(like_weight(mask, layer.weight))
    return layer, FORMATS["csr"].from_dense(as_matrix(layer.weight), mask)


REFERENCE = entry("csr_reference")


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_takes_any_leading_dims(lead, bias):
    dense, stored = pruned(nn.Linear(12, 8, bias=bias))
    sparse = SparseLinear.replacing(dense, REFERENCE, stored)
    x = torch.randn(*lead, 12)
    torch.testing.assert_close(sparse(x), dense(x))
    assert (sparse.in_features, sparse.out_features) == (12, 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 1},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 1, "padding": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 1), "padding": (1, 0), "stride": (2, 1)},
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": 7, "stride": 2, "padding": 3, "bias": False},
    ],
    ids=str,
)
def test_conv_is_the_same_product(settings):
    dense, stored = pruned(nn.Conv2d(4, 8, **settings))
    sparse = SparseConv2d(REFERENCE, stored, dense)
    x = torch.randn(2, 4, 9, 7)
    torch.testing.assert_close(sparse(x), dense(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sparse.weight, dense.weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"padding": "same"}, "same"), ({"padding": 1, "padding_mode": "reflect"}, "reflect")],
    ids=str,
)
def test_conv_of_several_products(settings, reason):
    layer = nn.Conv2d(4, 4, 3, **settings)
    assert reason in conv_unsupported_reason(layer)
    with pytest.raises(ValueError, match=reason):
        SparseConv2d(REFERENCE, pruned(nn.Conv2d(4, 4, 3))[1], layer)


def test_feature_major_kernel_transposes_activations():
    dense, stored = pruned(nn.Linear(12, 8))
    shapes = []

    def run(x, packed, bias):
        shapes.append((tuple(x.shape), x.is_contiguous()))
        return packed.to_dense() @ x + bias[:, None]

    kernel = KernelEntry(name="fake", family="csr", product=run, layouts=("feature_major",))
    x = torch.randn(2, 3, 12)
    y = SparseLinear.replacing(dense, kernel, stored)(x)
    torch.testing.assert_close(y, dense(x))
    assert shapes == [((12, 6), True)] and y.is_contiguous()


def test_weight_is_prepared_once():
    dense, stored = pruned(nn.Linear(12, 8))
    packed = []

    def pack(format):
        packed.append(format.dtype)
        return format

    kernel = KernelEntry(name="fake", family="csr", product=REFERENCE.run, pack=pack)
    net = nn.Sequential(SparseLinear.replacing(dense, kernel, stored))
    net(torch.randn(2, 12)), net(torch.randn(2, 12))
    assert packed == [torch.float32]
    net.to("cpu", torch.float32)  # nothing to do
    assert packed == [torch.float32]
    net.double()
    assert packed == [torch.float32, torch.float64]
    x = torch.randn(2, 12, dtype=torch.float64)
    torch.testing.assert_close(net(x), dense.double()(x))


@pytest.mark.parametrize("kernel", ["csr_reference", "csr_torch"])
def test_it_compiles_without_a_graph_break(kernel):
    dense, stored = pruned(nn.Linear(12, 8))
    net = nn.Sequential(SparseLinear.replacing(dense, entry(kernel), stored), nn.ReLU())
    x = torch.randn(4, 12)
    with torch.inference_mode():
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), net(x))


class Packs:
    """A kernel's `pack` that copies the values; says on which devices it was asked to."""

    def __init__(self):
        self.devices = []

    def __call__(self, stored):
        self.devices.append(stored.device)
        return stored.to_dense()


def packing_layer():
    dense, stored = pruned(nn.Linear(12, 8))
    packs = Packs()
    kernel = KernelEntry(
        name="packs", family="csr", pack=packs, product=lambda x, weight, bias: torch.addmm(bias, x, weight.t())
    )
    return dense, SparseLinear.replacing(dense, kernel, stored), packs


def test_released_format_gives_the_weight():
    dense, sparse, packs = packing_layer()
    sparse.release_format()
    x = torch.randn(3, 12)
    torch.testing.assert_close(sparse.weight, dense.weight)
    for layer in (sparse, copy.deepcopy(sparse)):
        torch.testing.assert_close(layer(x), dense(x))
    doubled = copy.deepcopy(sparse).double()
    assert doubled.weight.dtype == doubled._operand.dtype == torch.float64
    torch.testing.assert_close(doubled(x.double()), copy.deepcopy(dense).double()(x.double()))
    assert len(packs.devices) == 4  # made, copied twice, cast


@pytest.mark.gpu
def test_released_format_follows_the_layer():
    cuda = torch.device("cuda", 0)
    dense, sparse, packs = packing_layer()
    dense, sparse = dense.to(cuda), sparse.to(cuda)
    assert sparse.format.device == cuda
    sparse.release_format()
    x = torch.randn(3, 12, device=cuda)
    for layer in (sparse, copy.deepcopy(sparse)):
        assert layer.format.device.type == "cpu" and layer._operand.device == layer.weight.device == cuda
        torch.testing.assert_close(layer(x), dense(x))
    half = copy.deepcopy(sparse).half()
    assert half.format.device.type == "cpu" and half._operand.dtype == torch.float16 and half._operand.device == cuda
    back = copy.deepcopy(sparse).cpu()
    assert back._operand.device.type == "cpu"
    again = back.to(cuda)
    assert again.format.device.type == "cpu" and again._operand.device == cuda
    torch.testing.assert_close(again(x), dense(x))
