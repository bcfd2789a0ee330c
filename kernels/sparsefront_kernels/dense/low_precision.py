"""Dense products in low precision: cuBLASLt's row-wise fp8 and int8, the baselines for sparse kernels.

Both are PyTorch calls. A compiled graph surrounds them with plain operations, so that quantization fuses with what precedes
and the epilogue with what follows.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.epilogue import finished
from sparsefront_kernels.quantized.quantize import Quantized
from sparsefront_kernels.quantized.reference import dtype_unsupported_reason
from sparsefront_kernels.quantized.weight import (
    QuantizedWeight,
    check_quantized_operands,
    multiplied,
    output_dtype,
    pack_quantized,
    quantized_x,
)

FP8_MULTIPLE = 16  # cuBLASLt requires K and N to be multiples
INT8_MULTIPLE = 8  # PyTorch requires K and N to be multiples
INT8_ROWS = 17  # minimum M in PyTorch


def dense_fp8(
    x: Tensor | Quantized,
    packed: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Compute Y = activation(X · Wᵀ + bias) + residual by `torch._scaled_mm` with scales per row of X and per output.

    Uses cuBLASLt's fast accumulation, as is usual for inference: 9 to 25 % faster than without on an H200, but less precise
    than float32. The relative error is 3e-4 at K = 512 and 1.3e-3 at K = 4096, more than float16's own rounding.

    Args:
        x: [M, K], quantized here with a scale per row; or already quantized, per row or with a static scale.
        packed: the weight.
        bias: [N], any float dtype, or None.
        residual: [M, N] in y's dtype, or None.
    Returns:
        [M, N] in x's dtype, or the weight's if x is already quantized. The epilogue is a separate pass over sums rounded to
        that dtype, except that a bias of the same dtype is added before rounding.
    Raises:
        ValueError: incompatible operands.
    """
    dtype = output_dtype(x, packed)
    quantized = quantized_x(x, packed)
    check_quantized_operands(quantized, packed, bias)
    if quantized.values.shape[0] == 0:
        return quantized.values.new_empty((0, packed.n), dtype=dtype)
    adds_bias = bias is not None and bias.dtype == dtype and dtype != torch.float32
    y = torch._scaled_mm(
        quantized.values.contiguous(),
        packed.values.t(),
        quantized.row_scales(),
        packed.scales.t(),
        bias=bias if adds_bias else None,
        out_dtype=dtype,
        use_fast_accum=True,
    )
    return finished(y, None if adds_bias else bias, activation, residual, dtype)


def dense_int8(
    x: Tensor | Quantized,
    packed: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Compute Y = activation(X · Wᵀ + bias) + residual by `torch._int_mm`: exact int32 sums, scaled in a separate pass.

    Arguments and result as in `dense_fp8`; x has a scale per row. Fewer than 17 rows are padded.
    """
    dtype = output_dtype(x, packed)
    quantized = quantized_x(x, packed)
    check_quantized_operands(quantized, packed, bias)
    values, m = quantized.values, quantized.values.shape[0]
    missing = INT8_ROWS if torch.compiler.is_exporting() else INT8_ROWS - m  # an exported program takes any m
    if missing > 0:
        values = pad(values, (0, 0, 0, missing))
    sums = torch._int_mm(values.contiguous(), packed.values.t())[:m]
    scales = {"row_scales": quantized.row_scales(), "output_scales": packed.scales}
    return finished(sums, bias, activation, residual, dtype, **scales)


def _fp8_unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.n % FP8_MULTIPLE or problem.k % FP8_MULTIPLE:
        return f"takes N and K in multiples of {FP8_MULTIPLE}, the weight is {[problem.n, problem.k]}"
    return dtype_unsupported_reason(problem) or cuda_unsupported_reason(problem, minimum_capability=(8, 9))


def _int8_unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.n % INT8_MULTIPLE or problem.k % INT8_MULTIPLE:
        return f"takes N and K in multiples of {INT8_MULTIPLE}, the weight is {[problem.n, problem.k]}"
    return dtype_unsupported_reason(problem) or cuda_unsupported_reason(problem, minimum_capability=(8, 0))


FP8_ENTRY = KernelEntry(
    name="dense_fp8",
    family="dense",
    product=dense_fp8,
    unsupported=_fp8_unsupported,
    pack=partial(pack_quantized, precision="fp8"),
    requires_cuda=True,
    fuses_epilogue=True,
    precision="fp8",
    takes_scales=("row", "static"),
    multiplied=multiplied,
)
INT8_ENTRY = KernelEntry(
    name="dense_int8",
    family="dense",
    product=dense_int8,
    unsupported=_int8_unsupported,
    pack=partial(pack_quantized, precision="int8"),
    requires_cuda=True,
    fuses_epilogue=True,
    precision="int8",
    takes_scales=("row",),
    multiplied=multiplied,
)
