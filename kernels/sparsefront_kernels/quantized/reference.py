"""Products in low precision in plain PyTorch: quantised, dequantised and multiplied in float32. Any device, no speed."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import X_DTYPES, Quantized, quantize
from sparsefront_kernels.quantized.weight import QuantizedWeight, multiplied, output_dtype, pack_quantized

GROUP = 128  # inputs that share a scale where a product quantises for the next one


def quantized_reference(
    x: Tensor | Quantized,
    packed: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual of the quantised operands, added up in float32 and rounded once.

    Args:
        x: [M, K], quantised here with a scale per row; or quantised already, with any scales.
        packed: the weight.
        bias: [N] or None.
        residual: [M, N] or None.
    Returns:
        [M, N] in x's dtype, or in the weight's where x comes quantised.
    """
    return _sums(x, packed, bias, activation, residual).to(output_dtype(x, packed))


def quantized_reference_for_next(
    x: Tensor | Quantized, packed: QuantizedWeight, bias: Tensor | None = None, *, activation: str = "none"
) -> Quantized:
    """activation(X · Wᵀ + bias) for a product to come: quantised from float32 per row and 128 outputs, which divide N."""
    return quantize(_sums(x, packed, bias, activation, None), "fp8", group=GROUP)


def _sums(
    x: Tensor | Quantized, packed: QuantizedWeight, bias: Tensor | None, activation: str, residual: Tensor | None
) -> Tensor:
    of_x, of_w = multiplied(x, packed)
    return with_epilogue(of_x @ of_w.t(), bias, activation, residual)


def dtype_unsupported_reason(problem: Problem) -> str | None:
    """Why X of this dtype cannot be quantised, or None."""
    return None if problem.dtype in X_DTYPES else f"quantises float16, bfloat16 or float32, not {problem.dtype}"


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
    """The reference of a family in a precision, "fp8" or "int8"."""
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
