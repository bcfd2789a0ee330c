"""Training in tiles and in blocks: products and gradients against dense autograd of the masked weight, and Triton's kernel."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from sparsefront_kernels.blocked import sm90_training, training
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.sm90_training import blocked_gradient_sm90
from sparsefront_kernels.blocked.training import TrainableBlockedLinear, weight_gradient_reference
from sparsefront_kernels.gathered.training import TrainableTilesLinear
from sparsefront_kernels.operands import loadable
from torch import Tensor, nn

CPU = torch.device("cpu")


class Case(NamedTuple):
    """A layer to train: its mask [N, K], how it is made, and how its weight holds the gradient of the dense one."""

    mask: Tensor
    layer: Callable[[nn.Linear, Tensor], nn.Module]
    held: Callable[[Tensor, Tensor], Tensor]
    rows: tuple[int, ...] = (5,)


def tiles(n, k, tile, density, every=2, rows=(5,)):
    """Tiles of every so-many-th output, of which the first keeps nothing."""
    mask, outputs = torch.ones(n, k, dtype=torch.bool), torch.arange(0, n, every)
    if density < 1:
        mask.zero_()
        for index, members in enumerate(outputs.split(tile)):
            mask[members] = (torch.rand(k) < density) & (index > 0)
    return Case(mask, TrainableTilesLinear.from_masked, lambda dense, mask: dense[mask][None], rows)


def blocks(n, k, block, density=0.4, rows=(5,)):
    """Whole blocks, whose first block row and last block column are empty."""
    return Case(
        drawn(n, k, block, density),
        lambda linear, mask: TrainableBlockedLinear.from_masked(linear, mask, block),
        lambda dense, mask: BlockedFormat.from_dense(dense, mask, block=block).values,
        rows,
    )


def drawn(n, k, block, density=0.4):
    kept = torch.rand(n // block[0], k // block[1]) < density
    kept[0], kept[:, -1] = False, False
    kept[-1, 0] = True
    return kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)


CASES = {
    "tiles of every second output": lambda: tiles(64, 40, 8, 0.5, rows=(7, 3)),
    "odd tiles": lambda: tiles(37, 19, 5, 0.4, every=3, rows=(1,)),
    "whole tiles": lambda: tiles(24, 16, 4, 1.0),
    "tiles, no rows": lambda: tiles(12, 8, 4, 0.5, rows=(0,)),
    "tiles that keep nothing": lambda: tiles(12, 8, 4, 0.0, every=1),
    "oblong blocks": lambda: blocks(96, 40, (32, 20), rows=(7, 3)),
    "odd blocks": lambda: blocks(6, 4, (3, 2), rows=(1,)),
    "square blocks": lambda: blocks(128, 192, (64, 64), rows=(70,)),
    "blocks, no rows": lambda: blocks(130, 39, (13, 3), rows=(0,)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_of_the_masked_weight(case, bias):
    mask, make, held, rows = case()
    linear = nn.Linear(*mask.t().shape, bias=bias, dtype=torch.float64)
    layer, weight = make(linear, mask), linear.weight.detach().mul(mask).requires_grad_()
    assert layer.weight.ndim > 1, "weight decay exempts vectors"
    assert torch.equal(layer.dense_weight(), weight)
    given, x = (torch.randn(*rows, side, dtype=torch.float64, requires_grad=True) for side in mask.shape)
    expected, y, more = F.linear(x, weight, linear.bias), layer(x), [linear.bias] if bias else []
    torch.testing.assert_close(y, expected)
    wanted = torch.autograd.grad(expected, [x, weight, *more], given)
    found = torch.autograd.grad(y, [x, layer.weight, *more], given)
    for one, other in zip(found, (wanted[0], held(wanted[1], mask), *wanted[2:]), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("case", [tiles(48, 32, 8, 0.5), blocks(48, 32, (16, 8))], ids=["tiles", "blocks"])
def test_op_works_compiled_and_copied(case):
    layer, x = case.layer(nn.Linear(32, 48), case.mask), torch.randn(5, 32)
    other = copy.deepcopy(layer)
    assert set(layer.state_dict()) == {"weight", "bias"}
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.compile(layer, backend="aot_eager")(x)
        assert torch.equal(y, other(x)) and y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    other(x.bfloat16()).float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)
    assert torch.equal(layer.bias.grad, other.bias.grad)


def test_opcheck_of_blocks():
    layer = TrainableBlockedLinear.from_masked(nn.Linear(32, 48), drawn(48, 32, (16, 8)), (16, 8))
    values = layer.weight.detach().clone().requires_grad_()
    operands = torch.randn(5, 32, requires_grad=True), values, layer.bias, layer._handle, 48
    torch.library.opcheck(torch.ops.sparsefront.blocked_training, operands)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gpu_gradients_are_those_of_float64(dtype):
    for mask, make, held, rows in (
        tiles(512, 300, 64, 0.5, rows=(333,)),
        blocks(512, 768, (64, 64), rows=(1000,)),
        blocks(256, 512, (128, 128), rows=(77,)),
        blocks(96, 80, (32, 16), rows=(333,)),
        blocks(128, 128, (64, 64), rows=(0,)),
    ):
        mask, linear = mask.cuda(), nn.Linear(*mask.t().shape, device="cuda")
        layer = make(linear, mask)
        given, x = (torch.randn(*rows, side, device="cuda", dtype=dtype, requires_grad=True) for side in mask.shape)
        weight, wide = layer.dense_weight().to(dtype).double().requires_grad_(), x.detach().double().requires_grad_()
        layer(x).backward(given)
        F.linear(wide, weight, linear.bias.double()).backward(given.double())
        for found, expected in ((x.grad, wide.grad), (layer.weight.grad, held(weight.grad, mask))):
            error = (found.double() - expected).norm() / expected.norm().clamp(min=1e-9)
            assert error <= (5e-3 if dtype == torch.bfloat16 else 1e-3), mask.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_own_check_finds_wrong_kernels(dtype, monkeypatch):
    layer = TrainableBlockedLinear.from_masked(nn.Linear(64, 96), drawn(96, 64, (32, 16)), (32, 16))
    assert layer.largest_error(dtype, CPU, rows=33) < (1e-3 if dtype == torch.float16 else 1e-5)
    monkeypatch.setattr(
        training, "weight_gradient_reference", lambda dy, x, stored: 1.1 * weight_gradient_reference(dy, x, stored)
    )
    assert layer.largest_error(dtype, CPU, rows=33) > 0.05


def test_weight_without_blocks_gives_bias():
    layer = TrainableBlockedLinear.from_masked(nn.Linear(8, 4), torch.zeros(4, 8, dtype=torch.bool), (2, 4))
    x = torch.randn(3, 8, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(y, layer.bias.expand(3, 4)) and not x.grad.any() and layer.weight.grad.shape == (0, 2, 4)


@pytest.mark.parametrize(
    ("n", "k", "block", "m"), [(128, 256, (64, 64), 70), (64, 48, (32, 16), 33), (26, 12, (13, 3), 9)]
)
def test_triton_gradient_of_kept_blocks(n, k, block, m, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    from sparsefront_kernels.blocked.triton_training import GradientLaunch

    layer = TrainableBlockedLinear.from_masked(nn.Linear(k, n), drawn(n, k, block, 0.7), block)
    x, dy = torch.randn(m, k), torch.randn(n, m).t()
    expected = weight_gradient_reference(dy, x, layer._blocks.blocks(False, CPU))
    for side_by_side, splits in ((1, 1), (4, 3)):
        launch = GradientLaunch(side_by_side, block_m=16, splits=splits, num_warps=4, num_stages=2)
        monkeypatch.setattr(training, "gradient_launch", lambda *_, launch=launch: launch)
        torch.testing.assert_close(
            training.triton_weight_gradient(dy, x, layer._blocks), expected, rtol=1e-4, atol=1e-4
        )


def test_no_rows_launch_nothing(monkeypatch):
    monkeypatch.setattr(sm90_training, "num_sms", lambda device: 132)
    layer = TrainableBlockedLinear.from_masked(nn.Linear(128, 128), drawn(128, 128, (64, 64), 0.6), (64, 64))
    rows, blocks = torch.empty(0, 128, dtype=torch.float16), layer._blocks
    found = blocked_gradient_sm90(rows, rows, blocks.boxes(CPU), blocks.block, blocks.count, bias=True)
    assert [tuple(one.shape) for one in found] == [tuple(layer.weight.shape), (128,)]
    assert not any(one.any() for one in found)


def test_unreadable_memory_is_copied():
    rows = torch.randn(6, 64).half()
    ways = (
        rows.t(),
        rows[:1].expand(6, 64),
        rows[:1].as_strided((1, 64), (5, 1)),
        rows[:, 1:],
        rows.view(-1)[1:65].view(1, 64),
    )
    for given in ways:
        found = loadable(given)
        assert (
            torch.equal(found, given) and found.stride() == (given.shape[1], 1) and found.data_ptr() != given.data_ptr()
        )
    assert loadable(rows) is rows and loadable(rows[::2]).data_ptr() == rows.data_ptr()
