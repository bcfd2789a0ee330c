"""Registry entry of `blocked_fp8_sm90`: quantizes X before the product, and optionally Y in it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.fp8_sm90 import (
    GROUP,
    LIBRARY,
    OUT_TYPES,
    BlockedFp8Weight,
    blocked_fp8,
    blocked_fp8_quantized,
    dense_weight,
    pack_for_blocked_fp8_sm90,
    weight_unsupported_reason,
)
from sparsefront_kernels.device_support import library_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import Quantized, dequantize, quantize


@dataclass(frozen=True, eq=False)
class QuantizedBlocks:
    """A blocked weight in e4m3.

    Args:
        weight: in the kernel's fastest layout.
        adjacent: in the layout for quantizing Y, which needs 128 consecutive outputs per CTA tile: the same object if the block
            height is a multiple of 128; None if 128 does not divide N.
        dtype: of Y if X is already quantized.
    """

    weight: BlockedFp8Weight
    adjacent: BlockedFp8Weight | None
    dtype: torch.dtype


def pack_blocks(stored: BlockedFormat) -> QuantizedBlocks:
    """Quantize per output and pack, on the format's device; blocks of 64 outputs are stored twice."""
    weight = pack_for_blocked_fp8_sm90(stored)
    if weight.has_adjacent_halves:
        return QuantizedBlocks(weight, weight, stored.dtype)
    adjacent = None if stored.shape[0] % GROUP else pack_for_blocked_fp8_sm90(stored, adjacent_halves=True)
    return QuantizedBlocks(weight, adjacent, stored.dtype)


def blocked_product(
    x: Tensor | Quantized,
    packed: QuantizedBlocks,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Compute Y = activation(X · Wᵀ + bias) + residual, rounded once.

    Args:
        x: [M, K], quantized here with a scale per row; or already quantized, with any scales.
        packed: the weight.
        bias: [N], any float dtype, or None.
        residual: [M, N] in y's dtype, or None.
    Returns:
        [M, N] in x's dtype, or the weight's if x is already quantized.
    """
    dtype = packed.dtype if isinstance(x, Quantized) else x.dtype
    values, scales = _operands(x)
    return blocked_fp8(values, scales, packed.weight, bias, residual=residual, activation=activation, out_dtype=dtype)


def blocked_product_for_next(
    x: Tensor | Quantized, packed: QuantizedBlocks, bias: Tensor | None = None, *, activation: str = "none"
) -> Quantized:
    """activation(X · Wᵀ + bias), quantized from float32 per row and 128 outputs, as input of the next product.

    Raises:
        ValueError: 128 does not divide N.
    """
    if packed.adjacent is None:
        raise ValueError(f"blocked_fp8_sm90 quantizes Y of outputs in multiples of {GROUP}, not {packed.weight.n}")
    return Quantized(*blocked_fp8_quantized(*_operands(x), packed.adjacent, bias, activation=activation))


def _operands(x: Tensor | Quantized) -> tuple[Tensor, Tensor]:
    """Values, and scales per row or per row and 128 inputs."""
    x = x if isinstance(x, Quantized) else quantize(x)
    return x.values, x.row_scales() if x.scales.shape[1] == 1 else x.scales


def _multiplied(x: Tensor | Quantized, packed: QuantizedBlocks) -> tuple[Tensor, Tensor]:
    return dequantize(Quantized(*_operands(x))), dense_weight(packed.weight)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    reason = weight_unsupported_reason(stored)
    if reason:  # type: ignore[arg-type]
        return reason
    if problem.dtype not in OUT_TYPES:
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return library_unsupported_reason(problem, LIBRARY)


ENTRY = KernelEntry(
    name="blocked_fp8_sm90",
    family="blocked",
    product=blocked_product,
    unsupported=_unsupported,
    pack=pack_blocks,
    requires_cuda=True,
    fuses_epilogue=True,
    precision="fp8",
    takes_scales=("row", "group128", "static"),
    multiplied=_multiplied,
    quantized_run=blocked_product_for_next,
)
