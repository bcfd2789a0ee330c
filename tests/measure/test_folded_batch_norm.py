"""BatchNorm folded into dense and sparse convolutions: the same outputs, and where it stays."""

import pytest
import torch
from sparsefront_kernels import FORMATS, entry
from torch import nn

from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.execution_mode import CannotTrace
from sparsefront.measure.variants import CannotFold, DoesNotApply, fold_batch_norm, make_variant


class Block(nn.Module):
    def __init__(self, bias=False, affine=True):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 8, 3, bias=bias, padding=1), nn.BatchNorm2d(8, affine=affine)
        self.second, self.second_norm = nn.Conv2d(8, 8, 1, bias=bias), nn.BatchNorm2d(8, affine=affine)

    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + y).relu()


def drawn(net):
    """With statistics and parameters that are not those of a new network."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return net.eval()


def norms(net):
    return sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_dense_and_sparse_convolutions(bias, affine):
    net, x = drawn(Block(bias, affine)), torch.randn(2, 3, 9, 9)
    mask = torch.rand(8, 8) < 0.5
    net.second.weight.data.mul_(mask[:, :, None, None])
    stored = FORMATS["csr"].from_dense(as_matrix(net.second.weight.detach()), mask)
    expected = net(x)
    net.second = SparseConv2d.replacing(net.second, entry("csr_reference"), stored)
    folded = fold_batch_norm(net)
    assert norms(net) == 2 and norms(folded) == 0 and isinstance(folded.second, SparseConv2d)
    torch.testing.assert_close(folded(x), expected)
    torch.testing.assert_close(net(x), expected)
    assert torch.equal(folded.second.format.to_dense() != 0, mask)
    varied = make_variant("folded_batch_norm", net, {"x": x})
    torch.testing.assert_close(varied(x), expected)


class ReadTwice(Block):
    def forward(self, x):
        y = self.first(x)
        return self.first_norm(y) + y


class CalledTwice(Block):
    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        return self.second_norm(self.second(self.second_norm(self.second(y))))


class Undecided(Block):
    def forward(self, x):
        return self.first_norm(self.first(x)) if x.sum() > 0 else x


def test_where_batch_norm_stays():
    x = torch.randn(2, 3, 9, 9)
    with pytest.raises(CannotFold, match="no BatchNorm2d alone reads a convolution"):
        fold_batch_norm(drawn(ReadTwice()))
    called_twice = drawn(CalledTwice())
    folded = fold_batch_norm(called_twice)
    assert norms(folded) == 1
    torch.testing.assert_close(folded(x), called_twice(x))
    with pytest.raises(CannotTrace, match="its forward cannot be traced"):
        fold_batch_norm(drawn(Undecided()))
    with pytest.raises(DoesNotApply, match="has no BatchNorm2d"):
        make_variant("folded_batch_norm", nn.Sequential(nn.Conv2d(3, 8, 3)).eval(), {"x": x})


STORED = {
    "csr": ({}, lambda n, k: torch.rand(n, k) < 0.4),
    "n_m": ({"n": 2, "m": 4}, lambda n, k: (torch.rand(n, k // 4, 4).argsort(-1) < 2).view(n, k)),
    "semi_structured": ({}, lambda n, k: (torch.rand(n, k // 4, 4).argsort(-1) < 2).view(n, k)),
    "ell": ({"block": 1}, lambda n, k: torch.rand(n, k).argsort(-1) < 5),
    "blocked": (
        {"block": (8, 4)},
        lambda n, k: (torch.rand(n // 8, k // 4) < 0.5).repeat_interleave(8, 0).repeat_interleave(4, 1),
    ),
    "gathered": ({"tile": 8}, lambda n, k: (torch.rand(n // 8, k) < 0.5).repeat_interleave(8, 0)),
}


@pytest.mark.parametrize("family", STORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_format_is_scaled_by_outputs(family, dtype):
    parameters, draw = STORED[family]
    weight, mask, scale = torch.randn(16, 32, dtype=dtype), draw(16, 32), torch.randn(16)
    stored = FORMATS[family].from_dense(weight * mask, mask, **parameters)
    scaled = stored.scaled(scale)
    assert scaled.dtype == dtype
    expected = ((weight * mask).float() * scale[:, None]).to(dtype)
    assert torch.equal(scaled.to_dense(), expected)
