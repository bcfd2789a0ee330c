"""Steps of an LSTM: the gates, and a step with the product of the state by a sparse weight."""

import pytest
import torch
from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.recurrent import SparseGates, lstm_gates, lstm_gates_reference, lstm_step
from sparsefront_kernels.recurrent.gates import lstm_gates_backward
from sparsefront_kernels.recurrent.step import pack_steps
from sparsefront_kernels.recurrent.triton_steps import (
    launch_lstm_gates,
    launch_lstm_gates_backward,
    launch_lstm_step,
)
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def tolerance(dtype: torch.dtype, device: str) -> float:
    return TOLERANCE[dtype] * (1 if device == "cuda" else 2)  # the interpreter cuts bfloat16 off


def products(rows: int, width: int, device, dtype=torch.float32) -> tuple[Tensor, ...]:
    """Of input and state, and c, as parts of wider matrices, as all steps have them in one."""
    wide = torch.randn(3, rows, 8 * width, device=device).to(dtype)
    return wide[0, :, : 4 * width], wide[1, :, 4 * width :], wide[2, :, width : 2 * width]


def poisoned(*shapes: tuple[int, int], like: Tensor) -> list[Tensor]:
    return [like.new_full(shape, torch.nan) for shape in shapes]


@pytest.mark.parametrize("wide_state", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 300), (3, 32)])
def test_gates_and_their_gradients(rows, width, dtype, wide_state, device):
    from_input, from_state, c = products(rows, width, device, dtype)
    operands = (from_input, from_state, c.float() if wide_state else c)
    dh, dc = (torch.randn(rows, width, device=device).to(one.dtype) for one in (from_input, operands[2]))
    leaves = [part.detach().double().requires_grad_() for part in operands]
    right = lstm_gates_reference(*leaves)
    right_gradients = torch.autograd.grad(right, leaves, (dh.double(), dc.double()))
    launched = poisoned((rows, width), like=from_input) + poisoned((rows, width), like=operands[2])
    launch_lstm_gates(*operands, *launched)
    gradients = poisoned((rows, 4 * width), like=from_input) + poisoned((rows, width), like=operands[2])
    launch_lstm_gates_backward(*operands, dh, dc, *gradients)
    results = [(launched, right), (gradients, right_gradients[1:]), (lstm_gates(*operands), right)]
    results.append((lstm_gates_backward(*operands, dh, dc), right_gradients[1:]))
    for tensors, expected in results:
        for one, other, like in zip(tensors, expected, (from_input, operands[2]), strict=True):
            assert one.is_contiguous() and one.dtype == like.dtype
            error = tolerance(dtype, device)
            assert torch.allclose(one.double(), other, atol=error, rtol=error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_are_an_op(dtype, device):
    operands = products(3, 8, device, dtype)
    given = (operands[0], operands[1][0].expand(3, -1), operands[2])  # rows alike, as of a bias
    torch.library.opcheck(lstm_gates, given, test_utils=("test_schema", "test_faketensor"))
    ours, theirs = ([part.detach().requires_grad_() for part in given] for _ in range(2))
    for parts, run in ((ours, lstm_gates), (theirs, lstm_gates_reference)):
        h, c = run(*parts)
        assert h.dtype == c.dtype == dtype
        (h.sum() + (c * c).sum()).backward()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5 if dtype == torch.float32 else 1e-12)
    with pytest.raises(ValueError, match=rf"products must be {dtype} \[3, 32\]"):
        lstm_gates(given[0][:, 1:], *given[1:])


def masked_weight(width: int, density: float, device, dtype) -> tuple[Tensor, Tensor]:
    """[4H, H] that keeps whole inputs in tiles of 8 outputs."""
    mask = (torch.rand(4 * width // 8, width) < density).repeat_interleave(8, 0)
    return torch.randn(4 * width, width).to(device, dtype) / width**0.5 * mask.to(device), mask.to(device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "width", "density", "has_bias"),
    [(1, 16, 0.5, False), (40, 48, 0.1, True), (33, 32, 1.0, True), (5, 16, 0.0, True), (2, 528, 0.9, False)],
)
def test_step(rows, width, density, has_bias, dtype, device):
    torch.manual_seed(rows)
    weight, mask = masked_weight(width, density, device, dtype)
    layer = SparseGates(CSRFormat.from_dense(weight, mask), torch.randn(4 * width, device=device) if has_bias else None)
    packed = pack_steps(layer.format)
    assert torch.equal(packed.dense(), weight) and packed.panels.shape[2] % 16 == 0
    from_input, _, c = products(rows, width, device, dtype)
    h, c = torch.randn(rows, width, device=device).to(dtype), c.contiguous()
    product = torch.nn.functional.linear(
        h.double(), weight.double(), None if layer.bias is None else layer.bias.double()
    )
    expected = lstm_gates_reference(from_input.double(), product, c.double())
    results = [layer.step(from_input, h.t().contiguous(), c)]
    if device == "cuda" or dtype == torch.float16:  # the interpreter has no products of bfloat16
        launched = poisoned((rows, width), (width, rows), (rows, width), like=c)
        launch_lstm_step(from_input, h.t().contiguous(), c, packed.panels, packed.lists, layer.bias, *launched)
        results.append(launched)
    for new_h, state, new_c in results:
        assert torch.equal(state.t(), new_h) and state.is_contiguous()
        for found, right in zip((new_h, new_c), expected, strict=True):
            assert torch.allclose(
                found.double(), right, atol=2 * tolerance(dtype, device), rtol=tolerance(dtype, device)
            )


def test_step_is_an_op(device):
    weight, mask = masked_weight(32, 0.3, device, torch.float16)
    stored = GatheredFormat.from_dense(weight, mask, tile=8)
    layer = SparseGates(stored, None)
    x = torch.randn(3, 32, device=device, dtype=torch.float16)
    assert (
        torch.allclose(layer(x), torch.nn.functional.linear(x, weight), atol=1e-3) and layer.kernel_name == "lstm_step"
    )
    from_input, _, c = products(3, 32, device, torch.float16)
    packed = pack_steps(stored)
    given = (from_input, x.t().contiguous(), c.contiguous(), packed.panels, packed.lists, None)
    torch.library.opcheck(lstm_step, given, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match=r"state must be torch.float16 \[32, 3\]"):
        lstm_step(from_input, x, *given[2:])
    with pytest.raises(ValueError, match="must be contiguous"):
        lstm_step(from_input, given[1], c, *given[3:])
