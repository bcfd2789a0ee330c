"""Training in tiles: products and gradients against dense autograd of the masked weight."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sparsefront_kernels.gathered.training import TrainableTilesLinear
from torch import nn


def tiles(n, k, tile, density, every=2):
    """A mask [N, K] of tiles of every so-many-th output, of which the first keeps nothing."""
    mask, rows = torch.zeros(n, k, dtype=torch.bool), torch.arange(0, n, every)
    for index, members in enumerate(rows.split(tile)):
        mask[members] = (torch.rand(k) < density) & (index > 0)
    return mask


CASES = {  # N, K, tile, density, every, rows of X
    "halves": (64, 40, 8, 0.5, 2, (7, 3)),
    "odd": (37, 19, 5, 0.4, 3, (1,)),
    "all outputs": (24, 16, 4, 1.0, 1, (5,)),
    "no rows": (12, 8, 4, 0.5, 2, (0,)),
    "nothing kept": (12, 8, 4, 0.0, 1, (4,)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_masked_weight(case, bias):
    n, k, tile, density, every, rows = case
    mask = torch.ones(n, k, dtype=torch.bool) if density == 1.0 else tiles(n, k, tile, density, every)
    linear = nn.Linear(k, n, bias=bias, dtype=torch.float64)
    layer = TrainableTilesLinear.from_masked(linear, mask)
    assert layer.weight.ndim > 1, "weight decay exempts vectors"
    weight = linear.weight.detach().mul(mask).requires_grad_()
    assert torch.equal(layer.dense_weight(), weight)
    x, given = (torch.randn(*rows, side, dtype=torch.float64, requires_grad=True) for side in (k, n))
    expected = F.linear(x, weight, linear.bias)
    found = layer(x)
    torch.testing.assert_close(found, expected)
    more = [linear.bias] if bias else []
    wanted = torch.autograd.grad(expected, [x, weight, *more], given)
    gradients = torch.autograd.grad(found, [x, layer.weight, *more], given)
    for one, other in zip(gradients, (wanted[0], wanted[1][mask][None], *wanted[2:]), strict=True):
        torch.testing.assert_close(one, other)


def test_it_works_compiled_under_autocast_and_copied():
    layer = TrainableTilesLinear.from_masked(nn.Linear(32, 48), tiles(48, 32, 8, 0.5))
    other, x = copy.deepcopy(layer), torch.randn(5, 32)
    assert set(layer.state_dict()) == {"weight", "bias"}
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.compile(layer, backend="aot_eager")(x)
        assert torch.equal(y, other(x)) and y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    other(x.bfloat16()).float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gpu_gradients_are_those_of_float64(dtype):
    mask = tiles(512, 300, 64, 0.5).cuda()
    linear = nn.Linear(300, 512, device="cuda")
    layer = TrainableTilesLinear.from_masked(linear, mask)
    x, given = (torch.randn(333, side, device="cuda", dtype=dtype, requires_grad=True) for side in (300, 512))
    weight, wide = layer.dense_weight().to(dtype).double().requires_grad_(), x.detach().double().requires_grad_()
    layer(x).backward(given)
    F.linear(wide, weight, linear.bias.double()).backward(given.double())
    for found, expected in ((x.grad, wide.grad), (layer.weight.grad, weight.grad[mask][None])):
        error = (found.double() - expected).norm() / expected.norm()
        assert error <= (5e-3 if dtype == torch.bfloat16 else 1e-3)
