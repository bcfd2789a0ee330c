"""`dense_cublaslt`: PyTorch's dense product with bias and ReLU, or the tanh form of GELU, in cuBLASLt's epilogue."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.epilogue import ACTIVATIONS, check_activation
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import check_epilogue, check_operands
from sparsefront_kernels.problem import Problem

KERNEL = "dense_cublaslt"
FUSED = ("relu", "gelu_tanh")  # activations of its epilogue; an exact GELU is none of them


@dataclass(frozen=True, eq=False)
class CublasltWeight:
    """W [N, K], as it is."""

    n: int
    k: int
    values: Tensor


def dense_cublaslt(
    x: Tensor, packed: CublasltWeight, bias: Tensor | None, *, activation: str = "none", residual: Tensor | None = None
) -> Tensor:
    """Compute Y = activation(X · Wᵀ + bias) + residual; other activations, and all without a bias, take passes of their own.

    Args:
        x: [M, K], the weight's dtype, any strides.
        bias: [N], any float dtype, or None; added in x's dtype.
        residual: [M, N] in x's dtype, or None.
    Returns:
        [M, N] in x's dtype.
    Raises:
        ValueError: incompatible operands.
    """
    check_operands(x, packed.values, bias, k=packed.k, n=packed.n)
    bias = None if bias is None else bias.to(x.dtype)
    if bias is not None and activation in FUSED and x.is_cuda:  # on a CPU `use_gelu` is the exact form
        use_gelu = activation == "gelu_tanh"
        y = torch.ops.aten._addmm_activation(bias, x, packed.values.t(), use_gelu=use_gelu)
    else:
        check_activation(activation)
        y = ACTIVATIONS[activation](linear(x, packed.values, bias))
    check_epilogue(y, activation, residual)
    return y if residual is None else y + residual


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return cuda_unsupported_reason(problem, minimum_capability=(8, 0))


ENTRY = kernel_entry(
    KERNEL,
    "dense",
    weight=CublasltWeight,
    run=dense_cublaslt,
    dense=lambda packed: packed.values,
    pack=lambda stored: CublasltWeight(*stored.shape, stored.values),
    unsupported=_unsupported,
    fuses_epilogue=True,
)
