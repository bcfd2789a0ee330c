"""Gradients through the gathered ops against autograd through the same product in float64."""

import pytest
import torch
from in_layout import every_layout, in_layout, is_tried_here
from random_problems import precision_allowed
from sparsefront_kernels import Problem
from sparsefront_kernels.epilogue import ACTIVATIONS

KERNELS = [
    kernel.name
    for kernel in every_layout()
    if kernel.family == "gathered" and kernel.requires_cuda and is_tried_here(kernel)
]
WEIGHTS = ["gathered-uneven", "gathered-kept", "gathered-pruned"]
# two products and two roundings to 16 bits, or to TF32, instead of one
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, "tf32": 2e-3}
NEAR_ZERO = 0.1  # many times what TF32 or 16 bits round off a sum of these tests, whose size is about 10


@pytest.fixture(params=KERNELS)
def kernel(request):
    with precision_allowed(in_layout(request.param)):
        yield in_layout(request.param)


@pytest.fixture
def setting(kernel, request, cases, device):
    """(format, packed weight, problem) for a weight of the table, or a skip with the kernel's own reason."""

    def make(weight, m=9):
        dtype = torch.float16 if kernel.name.startswith("gathered_sm90") else torch.float32
        stored = cases[weight].build().to(device, dtype)
        problem = Problem(m, stored.shape[1], stored.shape[0], dtype, device, kernel.layout)
        if reason := kernel.unsupported_reason(stored, problem):
            pytest.skip(reason)
        return stored, kernel.pack(stored), problem

    return make


def operands(problem):
    """X, bias and residual that want gradients."""
    shapes = problem.x_shape, (problem.n,), problem.y_shape
    return [torch.randn(shape).to(problem.device, problem.dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradients_against_float64(kernel, setting, weight, activation, expected_product):
    stored, packed, problem = setting(weight)
    wanted = operands(problem)
    x, bias, residual = wanted
    y = kernel.run(x, packed, bias, activation=activation, residual=residual)
    dy = torch.randn_like(y)
    if activation == "relu":  # its gradient jumps where rounding takes a sum to the other side of zero
        sums = expected_product(x.detach(), stored, bias.detach(), kernel.layout)
        dy = torch.where(sums.abs() > NEAR_ZERO, dy, 0.0)
    gradients = torch.autograd.grad(y, wanted, dy)
    exact = [tensor.detach().double().requires_grad_() for tensor in wanted]
    y_exact = expected_product(exact[0], stored, exact[1], kernel.layout, activation=activation, residual=exact[2])
    expected = torch.autograd.grad(y_exact, exact, dy.double())
    for gradient, truth, operand in zip(gradients, expected, wanted, strict=True):
        assert (gradient.shape, gradient.dtype) == (operand.shape, operand.dtype)
        assert torch.linalg.norm(gradient.double() - truth) <= TOLERANCE[
            kernel.dtype_name or problem.dtype
        ] * torch.linalg.norm(truth)


def test_only_what_is_wanted(kernel, setting):
    _, packed, problem = setting("gathered-uneven")
    x, bias, residual = operands(problem)
    y = kernel.run(x, packed, bias.detach(), activation="relu", residual=residual.detach())
    y.sum().backward()
    assert x.grad.shape == x.shape and bias.grad is None and residual.grad is None
    assert not kernel.run(x.detach(), packed, None).requires_grad


def test_a_stored_weight_has_no_gradient(kernel, setting):
    _, packed, problem = setting("gathered-uneven")
    for values in ("values", "panels"):
        if hasattr(packed, values):
            getattr(packed, values).requires_grad_()
    with pytest.raises(ValueError, match="the weight is stored, not trained"):
        kernel.run(operands(problem)[0], packed, None)


def test_compiled_gradients_are_the_eager_ones(kernel, setting):
    _, packed, problem = setting("gathered-uneven")
    wanted = operands(problem)

    def loss(x, bias, residual):
        y = kernel.run(x, packed, bias, activation="gelu", residual=residual)
        return (y * y).sum()

    eager = torch.autograd.grad(loss(*wanted), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for one, other in zip(torch.autograd.grad(compiled(*wanted), wanted), eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_opcheck(kernel, setting):
    """PyTorch's own checks, those of registered gradients included."""
    _, packed, problem = setting("gathered-uneven")
    x, bias, residual = operands(problem)
    op = getattr(torch.ops.sparsefront, kernel.kernel.name).default
    given = {"x": x, "bias": bias, "residual": residual, "activation": "gelu_tanh"} | vars(packed)
    given |= {"x_feature_major": problem.x_shape[0] == problem.k, "y_feature_major": problem.y_shape[0] == problem.n}
    torch.library.opcheck(op, tuple(given[argument.name] for argument in op._schema.arguments))
