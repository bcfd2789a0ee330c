"""A quantized weight [N, K] for products that read all of it, and the operands of such a product."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.operands import check_operands
from sparsefront_kernels.quantized.quantize import Quantized, dequantize, quantize, quantize_weight


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """W with a scale per output.

    Args:
        n, k: outputs and inputs of the weight.
        values: float8_e4m3fn or int8 [N, K], zeros where pruned.
        scales: float32 [N, 1].
        dtype: of the weight before quantization, and of Y if X is already quantized.
    """

    n: int
    k: int
    values: Tensor
    scales: Tensor
    dtype: torch.dtype

    @property
    def precision(self) -> str:
        """Either "fp8" or "int8"."""
        return Quantized(self.values, self.scales).precision


def pack_quantized(stored: SparseFormat, precision: str) -> QuantizedWeight:
    """Quantize the whole weight, zeros included, from float16, bfloat16 or float32, with a scale per output."""
    weight = stored.to_dense()
    return QuantizedWeight(*stored.shape, *quantize_weight(weight, precision), weight.dtype)


def quantized_x(x: Tensor | Quantized, packed: QuantizedWeight) -> Quantized:
    """X unchanged if already quantized, else quantized with a scale per row in the weight's precision."""
    return x if isinstance(x, Quantized) else quantize(x, packed.precision)


def check_quantized_operands(x: Quantized, packed: QuantizedWeight, bias: Tensor | None) -> None:
    """Raise ValueError unless x has the precision of the weight, and x, weight and bias are compatible."""
    check_operands(x.values, packed.values, bias, k=packed.k, n=packed.n)
    if x.scales.device != x.values.device or x.scales.dtype != torch.float32:
        raise ValueError(f"scales must be float32 on {x.values.device}, not {x.scales.dtype} on {x.scales.device}")
    if x.scales.ndim != 2 or x.scales.shape[0] not in (1, x.values.shape[0]):
        raise ValueError(f"scales must be [{x.values.shape[0]}, groups] or [1, 1], not {list(x.scales.shape)}")


def multiplied(x: Tensor | Quantized, packed: QuantizedWeight) -> tuple[Tensor, Tensor]:
    """float32 X [M, K] and W [N, K] after quantization."""
    quantized = quantized_x(x, packed)
    check_quantized_operands(quantized, packed, None)
    return dequantize(quantized), dequantize(Quantized(packed.values, packed.scales))


def output_dtype(x: Tensor | Quantized, packed: QuantizedWeight) -> torch.dtype:
    """Dtype of Y: that of X, or of the weight before quantization if X is already quantized."""
    return packed.dtype if isinstance(x, Quantized) else x.dtype
