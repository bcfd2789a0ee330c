"""Reference products in low precision in plain PyTorch: quantized, dequantized and multiplied in float32, on any device."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import X_DTYPES, Quantized, quantize
from sparsefront_kernels.quantized.weight import QuantizedWeight, multiplied, output_dtype, pack_quantized

GROUP = 128  # inputs per scale when a product quantizes its output for the next one


def quantized_reference(
    x: Tensor | Quantized,
    packed: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual of the quantized operands, accumulated in float32 and rounded once.

    Args:
        x: [M, K], quantized here with a scale per row; or already quantized, with any scales.
        packed: the weight.
        bias: [N] or None.
        residual: [M, N] or None.
    Returns:
        [M, N] in x's dtype, or the weight's if x is already quantized.
    """
    return _sums(x, packed, bias, activation, residual).to(output_dtype(x, packed))


def quantized_reference_for_next(
    x: Tensor | Quantized, packed: QuantizedWeight, bias: Tensor | None = None, *, activation: str = "none"
) -> Quantized:
    """activation(X · Wᵀ + bias), quantized from float32 per row and 128 outputs for the next product; 128 must divide N."""
    return quantize(_sums(x, packed, bias, activation, None), "fp8", group=GROUP)


def _sums(
    x: Tensor | Quantized, packed: QuantizedWeight, bias: Tensor | None, activation: str, residual: Tensor | None
) -> Tensor:
    of_x, of_w = multiplied(x, packed)
    return with_epilogue(of_x @ of_w.t(), bias, activation, residual)


def dtype_unsupported_reason(problem: Problem) -> str | None:
    """Why X of this dtype cannot be quantized, or None."""
    return None if problem.dtype in X_DTYPES else f"quantizes float16, bfloat16 or float32, not {problem.dtype}"


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return dtype_unsupported_reason(problem)


def _blocked_unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    width = stored.block[1]  # type: ignore[attr-defined]
    if width % GROUP:
        return f"takes blocks whose inputs are a multiple of {GROUP}, not {width}"
    return dtype_unsupported_reason(problem)


_ENTRY = KernelEntry(
    name="",
    family="",
    product=quantized_reference,
    unsupported=_unsupported,
    is_reference=True,
    fuses_epilogue=True,
    multiplied=multiplied,
    takes_scales=("row", "group128", "static"),
)


def reference_entry(family: str, precision: str) -> KernelEntry:
    """The reference kernel of a family in a precision, "fp8" or "int8"."""
    entry = replace(
        _ENTRY,
        name=f"{family}_{precision}_reference",
        family=family,
        precision=precision,
        pack=partial(pack_quantized, precision=precision),
    )
    if family != "blocked":
        return entry
    return replace(entry, unsupported=_blocked_unsupported, quantized_run=quantized_reference_for_next)
