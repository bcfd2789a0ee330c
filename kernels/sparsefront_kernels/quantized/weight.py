"""A weight in low precision as [N, K], which products that read all of it take, and what such a product multiplies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.quantized.quantize import Quantized, dequantize, quantize, quantize_weight


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """W with a scale per output.

    Args:
        n, k: outputs and inputs of the weight.
        values: float8_e4m3fn or int8 [N, K], zeros where pruned.
        scales: float32 [N, 1].
        dtype: of the weight that was quantised, and of Y where X comes quantised.
    """

    n: int
    k: int
    values: Tensor
    scales: Tensor
    dtype: torch.dtype


def pack_quantized(stored: SparseFormat, precision: str) -> QuantizedWeight:
    """The whole weight, zeros included, in float16, bfloat16 or float32 before, quantised per output."""
    weight = stored.to_dense()
    return QuantizedWeight(*stored.shape, *quantize_weight(weight, precision), weight.dtype)


def quantized_x(x: Tensor | Quantized, precision: str) -> Quantized:
    """X as it came where it is quantised, else with a scale per row.

    Raises:
        ValueError: X is quantised to another precision.
    """
    if not isinstance(x, Quantized):
        return quantize(x, precision)
    if x.precision != precision:
        raise ValueError(f"x is quantised to {x.precision}, the weight to {precision}")
    return x


def multiplied(x: Tensor | Quantized, packed: QuantizedWeight) -> tuple[Tensor, Tensor]:
    """float32 X [M, K] and W [N, K] as they are multiplied: after quantisation."""
    weight = Quantized(packed.values, packed.scales)
    return dequantize(quantized_x(x, weight.precision)), dequantize(weight)


def output_dtype(x: Tensor | Quantized, packed: QuantizedWeight) -> torch.dtype:
    """Of Y: that of X, or of the weight before it was quantised where X comes quantised."""
    return packed.dtype if isinstance(x, Quantized) else x.dtype
