"""Training in blocks: products and gradients against dense autograd, and Triton's kernels against the reference."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sparsefront_kernels.blocked import sm90_training, training
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.sm90_training import blocked_gradient_sm90
from sparsefront_kernels.blocked.training import TrainableBlockedLinear, weight_gradient_reference
from sparsefront_kernels.operands import loadable
from torch import nn

CPU = torch.device("cpu")
SHAPES = (  # N, K, block, rows of X: odd ones, and blocks that are not square
    (96, 40, (32, 20), (7, 3)),
    (6, 4, (3, 2), (1,)),
    (128, 192, (64, 64), (70,)),
    (130, 39, (13, 3), (0,)),
)


def drawn(n, k, block, density=0.4):
    """A bool [N, K] of whole blocks whose first block row and last block column are empty."""
    kept = torch.rand(n // block[0], k // block[1]) < density
    kept[0], kept[:, -1] = False, False
    kept[-1, 0] = True
    return kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "k", "block", "rows"), SHAPES)
def test_gradients_of_the_masked_weight(n, k, block, rows, bias):
    linear, mask = nn.Linear(k, n, bias=bias, dtype=torch.float64), drawn(n, k, block)
    layer = TrainableBlockedLinear.from_masked(linear, mask, block)
    x, given = (
        torch.randn(*rows, k, dtype=torch.float64, requires_grad=True),
        torch.randn(*rows, n, dtype=torch.float64),
    )
    weight = linear.weight.detach().mul(mask).requires_grad_()
    assert torch.equal(layer.dense_weight(), weight)
    expected = F.linear(x, weight, linear.bias)
    wanted = torch.autograd.grad(expected, [x, weight, *([linear.bias] if bias else [])], given)
    y = layer(x)
    found = torch.autograd.grad(y, [x, layer.weight, *([linear.bias] if bias else [])], given)
    torch.testing.assert_close(y, expected)
    blocks = BlockedFormat.from_dense(wanted[1], mask, block=block).values
    for one, other in zip(found, (wanted[0], blocks, *wanted[2:]), strict=True):
        torch.testing.assert_close(one, other)


def test_op_works_compiled_and_copied():
    layer = TrainableBlockedLinear.from_masked(nn.Linear(32, 48), drawn(48, 32, (16, 8)), (16, 8))
    other = copy.deepcopy(layer)
    x = torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.compile(layer, backend="aot_eager")(x)
        assert torch.equal(y, other(x)) and y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    other(x.bfloat16()).float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad, other.weight.grad) and torch.equal(layer.bias.grad, other.bias.grad)
    values = layer.weight.detach().clone().requires_grad_()
    operands = x.requires_grad_(), values, layer.bias, layer._handle, 48
    torch.library.opcheck(torch.ops.sparsefront.blocked_training, operands)


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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("n", "k", "block", "m"),
    [(512, 768, (64, 64), 1000), (256, 512, (128, 128), 77), (96, 80, (32, 16), 333), (128, 128, (64, 64), 0)],
)
def test_gpu_gradients_are_those_of_float64(n, k, block, m, dtype):
    linear, mask = nn.Linear(k, n, device="cuda"), drawn(n, k, block).cuda()
    layer = TrainableBlockedLinear.from_masked(linear, mask, block)
    x, given = (
        torch.randn(m, k, device="cuda", dtype=dtype, requires_grad=True),
        torch.randn(m, n, device="cuda", dtype=dtype),
    )
    weight = layer.dense_weight().to(dtype).double().requires_grad_()
    wide = x.detach().double().requires_grad_()
    y = layer(x)
    y.backward(given)
    F.linear(wide, weight, linear.bias.double()).backward(given.double())
    blocks = BlockedFormat.from_dense(weight.grad, mask, block=block).values
    for found, expected in ((x.grad, wide.grad), (layer.weight.grad, blocks)):
        error = (found.double() - expected).norm() / expected.norm().clamp(min=1e-9)
        assert error <= (5e-3 if dtype == torch.bfloat16 else 1e-3)
