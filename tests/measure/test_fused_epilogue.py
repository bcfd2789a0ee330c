"""ReLU and shortcuts inside sparse convolutions: the same outputs by a stand-in that reads images, and where nothing is fused."""

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, entry
from sparsefront_kernels.problem import Convolving
from torch import nn

from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.variants import DoesNotApply, NothingToFuse, fuse_epilogues, make_variant


@pytest.fixture
def kernel():
    """A kernel that reads images by plain PyTorch, and notes how."""
    calls = []

    def run(images, stored, bias, convolution, *, activation="none", residual=None, relu_last=False):
        calls.append((activation, residual is not None, relu_last))
        assert images.is_contiguous() and (residual is None or residual.is_contiguous())
        shape = (len(stored.to_dense()), images.shape[3], *convolution.kernel_size)
        weight = like_weight(stored.to_dense(), torch.empty(shape))
        settings = {"stride": convolution.stride, "padding": convolution.padding, "dilation": convolution.dilation}
        y = nn.functional.conv2d(images.permute(0, 3, 1, 2), weight, bias, **settings).permute(0, 2, 3, 1)
        y = y.relu() if activation == "relu" else y
        y = y if residual is None else y + residual
        return (y.relu() if relu_last else y).contiguous()

    reads = Convolving(run, lambda packed, images, convolution: "takes more channels" if images.shape[3] < 4 else None)
    plain = entry("csr_reference")
    made = KernelEntry(name="reads_images", family="csr", product=plain.run, pack=plain.pack, convolving=reads)
    return made, calls


def sparse(layer, kernel):
    mask = torch.rand(as_matrix(layer.weight).shape) < 0.6
    stored = FORMATS["csr"].from_dense(as_matrix(layer.weight.detach()) * mask, mask)
    return SparseConv2d.replacing(layer, kernel, stored)


class Bottleneck(nn.Module):
    """As torchvision's: the shortcut is computed after the last convolution."""

    def __init__(self, kernel):
        super().__init__()
        self.one = sparse(nn.Conv2d(8, 4, 1), kernel)
        self.two = sparse(nn.Conv2d(4, 4, 3, stride=2, padding=1), kernel)
        self.three = sparse(nn.Conv2d(4, 8, 1), kernel)
        self.norm = nn.Identity()
        self.shortcut = sparse(nn.Conv2d(8, 8, 1, stride=2, bias=False), kernel)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.one(x))
        y = torch.relu(self.two(y))
        y = self.norm(self.three(y))
        y += self.shortcut(x)
        return self.relu(y)


def test_a_bottleneck(kernel):
    made, calls = kernel
    net, x = Bottleneck(made).eval(), torch.randn(2, 8, 9, 7)
    with torch.no_grad():
        expected = net(x)
        calls.clear()
        fused = fuse_epilogues(net)
        y = fused(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(make_variant("fused_epilogue", net, {"x": x})(x), expected)
    assert calls[:4] == [("relu", False, False), ("relu", False, False), ("none", False, False), ("none", True, True)]
    assert not net.one.relu, "the network is left as it is"


class Mixed(nn.Module):
    """Convolutions that nothing can be fused into: read twice, followed by another function, or by a sum without ReLU."""

    def __init__(self, kernel):
        super().__init__()
        self.twice, self.other = (sparse(nn.Conv2d(8, 8, 1), kernel) for _ in range(2))
        self.summed = sparse(nn.Conv2d(8, 8, 1), kernel)
        self.last = sparse(nn.Conv2d(8, 8, 3, padding=1), kernel)

    def forward(self, x):
        y = self.twice(x)
        y = y.relu() + y
        y = self.other(y).sigmoid()
        y = self.summed(y) + x
        return self.last(y).relu()


def test_only_what_follows_directly(kernel):
    made, calls = kernel
    net, x = Mixed(made).eval(), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        expected = net(x)
        fused = fuse_epilogues(net)
        torch.testing.assert_close(fused(x), expected)
    assert [fused.get_submodule(name).relu for name in ("twice", "other", "summed", "last")] == [False] * 3 + [True]


def test_where_the_kernel_cannot_read_the_images(kernel):
    """Then rows of pixels, a sum and ReLU follow each other."""
    made, calls = kernel
    layer = sparse(nn.Conv2d(3, 8, 3, padding=1), made)
    x, residual = torch.randn(1, 3, 6, 6), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(layer.with_relu()(x, residual), (layer(x) + residual).relu())
    assert calls == []
    assert layer.copies_because(x) == "takes more channels"
    assert sparse(nn.Conv2d(8, 8, 3), made).copies_because(torch.randn(1, 8, 6, 6)) is None
    assert sparse(nn.Conv2d(8, 8, 1), entry("csr_reference")).copies_because(x) is None
    assert sparse(nn.Conv2d(8, 8, 3), entry("csr_reference")).copies_because(x) == "csr_reference reads rows"


def test_nothing_to_fuse(kernel):
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    with pytest.raises(NothingToFuse, match="no sparse convolution"):
        fuse_epilogues(dense)
    with pytest.raises(DoesNotApply, match="no sparse convolution"):
        make_variant("fused_epilogue", dense, {"x": torch.randn(1, 3, 8, 8)})
    rows_only = nn.Sequential(sparse(nn.Conv2d(8, 8, 3), entry("csr_reference")), nn.ReLU()).eval()
    with pytest.raises(NothingToFuse, match="followed by ReLU"):
        fuse_epilogues(rows_only)
