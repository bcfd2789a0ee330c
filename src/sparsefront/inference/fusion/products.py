"""Kernels of fused products: the candidates, and the check that they are correct."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sparsefront_kernels import KernelEntry, Problem, SparseFormat, entries, entry
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.quantized.quantize import Quantized, quantize
from torch import Tensor, nn

from sparsefront.inference.autotune import (
    Candidate,
    Candidates,
    as_family,
    collect_candidates,
    dense_format,
    low_dense_candidates,
    try_all,
    without_slower,
)
from sparsefront.inference.choice import DENSE, KernelChoice
from sparsefront.inference.fusion.fused_product import SCALE_GROUP, FusedProduct, in_layout
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.activated_linears import epilogue_kernels
from sparsefront.measure.correctness import (
    SEPARATE,
    error_in_chunks,
    limit_of,
    product_error_limit,
    scale_to_amax,
)
from sparsefront.measure.search_time import CHECKS, spending

# Candidate kernels of a product: in its layouts, or in others plus the cost of changing the layout.

# Family of the pattern -> others that can store such masks and may be faster: blocks as tiles, n:m at 50 % as 2:4.
ALSO_STORED_AS = {"blocked": ("gathered",), "n_m": ("semi_structured",)}


def dense_candidate(weight: ProductWeight) -> Candidate:
    return Candidate(entry(DENSE), "row_major", dense_format(weight.weight))


def activated_candidates(spec: ProductSpec, problem: Problem) -> Candidates:
    """Dense 16-bit kernels that compute the activation after a product with it, and why others cannot; none without one."""
    if spec.activation == "none":
        return Candidates([], {})
    kernels = epilogue_kernels(spec.activation, bias=spec.weight.bias is not None)
    rows = ((kernel, sort_layouts(kernel.layouts, problem.layout)) for kernel in kernels)
    return collect_candidates(rows, lambda family: dense_format(spec.weight.weight), problem)


def low_dense_products(
    weight: ProductWeight, problem: Problem, choice: KernelChoice, precision: Precision
) -> Candidates:
    """Low-precision dense kernels that can run the weight, and why others cannot."""
    plain, reason = choice.runs_plain(problem.device), partial(_explain_refusal, weight, problem.layout, precision)
    return low_dense_candidates(weight.weight, problem, precision, plain=plain, reason=reason)


def _explain_refusal(
    weight: ProductWeight,
    layout: str,
    precision: Precision,
    kernel: KernelEntry,
    stored: SparseFormat,
    problem: Problem,
) -> str | None:
    """Why a kernel cannot run a product whose operands are in `layout`, or None."""
    reason = None
    if kernel.precision != "none" and layout != "row_major":
        reason = f"takes row-major activations, not {layout}"
    elif kernel.precision != "none":
        reason = precision.explain_16_bits(weight.layers, (problem.n, problem.k), problem.dtype)
    return reason or kernel.unsupported_reason(stored, problem)


def try_only(wanted: str | None) -> Callable[[str], str | None]:
    """A `why_not` that tries one kernel alone."""
    return lambda kernel: None if kernel == wanted else f"not tried: {wanted} was faster in an equal product"


def sparse_candidates(
    weight: ProductWeight,
    problem: Problem,
    choice: KernelChoice,
    why_not: Callable[[str], str | None] = try_all,
    precision: Precision = IN_16_BITS,
) -> Candidates:
    """Usable kernels in the registry's order, low precision first, in the product's layout or else in others; and why others
    cannot run.

    Args:
        problem: with the product's layout.
        why_not: label -> why not to try it, or None.
        precision: of low-precision kernels to try next to 16-bit ones.
    """
    if weight.stored is None:
        return Candidates([], {})
    also = ALSO_STORED_AS.get(weight.family, ())
    kernels = (
        (kernel, sort_layouts(kernel.layouts, problem.layout))
        for kernel in (*precision.kernels(), *entries())
        if choice.allows(kernel, weight.family, problem.device, also)
    )
    reason = partial(_explain_refusal, weight, problem.layout, precision)
    report = collect_candidates(kernels, partial(_in_family, weight), problem, reason, why_not)
    if choice.name is not None:
        return report
    return Candidates(without_slower(report.usable, report.unsupported), report.unsupported)


def sort_layouts(layouts: Sequence[str], layout: str) -> list[list[str]]:
    """The product's layout if the kernel supports it; then, for the case that it cannot run, the kernel's other layouts."""
    return [[own for own in layouts if own == layout], [other for other in layouts if other != layout]]


def _in_family(weight: ProductWeight, family: str) -> SparseFormat | str:
    stored, mask = weight.stored, weight.mask
    assert stored is not None and mask is not None  # see `sparse_candidates`
    if family == stored.family:
        return stored
    if family != "gathered":
        return as_family(family, stored, weight.weight, mask)
    if not isinstance(stored, BlockedFormat):
        return f"these masks are stored as {weight.family}, not as gathered"
    return as_family(family, stored, weight.weight, mask, tile=stored.block[0], drop_empty_outputs=False)


# Correctness check of fused products, epilogue included, against fp64 with the masked weight.

CPU_ROWS = 64  # M on a CPU: references treat every row alike
CHUNK_ROWS = 8192  # of the fp64 product at a time
E4M3_STEP = 2.0**-3  # relative distance of neighboring values


class FusedCorrectnessCheck:
    """Compares candidates on random operands in the product's layouts with an fp64 reference.

    Memory for outputs is filled with NaN before a candidate is called, which catches unwritten elements. A low-precision
    candidate is compared with the product of its quantized operands.

    Args:
        amax: largest absolute value of x, for a static scale; None: not scaled.
    """

    def __init__(self, spec: ProductSpec, m: int, *, feature_major: bool, amax: float | None = None) -> None:
        weight = spec.weight.weight
        generator = torch.Generator(weight.device).manual_seed(0)
        n, k = weight.shape
        m = min(m, CPU_ROWS) if weight.device.type == "cpu" else m
        options: dict[str, Any] = {"generator": generator, "device": weight.device, "dtype": weight.dtype}
        self.spec = spec
        x = scale_to_amax(torch.randn(m, k, **options), amax)
        self.x = in_layout(x, feature_major=feature_major and spec.x_stream)
        self.residual = None
        if spec.residual:
            self.residual = in_layout(torch.randn(m, n, **options), feature_major=feature_major and spec.y_stream)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def limit(self) -> float:
        separate = self.spec.activation != "none" or self.spec.residual
        return product_error_limit(self.x.dtype) * (SEPARATE if separate else 1.0)

    @spending(CHECKS)
    @torch.no_grad()
    def evaluate(self, candidate: nn.Module) -> tuple[float, str | None]:
        """The relative error and, if it exceeds the limit, the reason to reject the candidate."""
        spoiled = self.x.new_full((len(self.x), len(self.spec.weight.weight)), math.nan)
        del spoiled
        error, limit = 0.0, limit_of(candidate, self.limit)
        for x in self._forms(candidate):
            output = candidate(x) if self.residual is None else candidate(x, self.residual)
            error = max(error, self._error(output, candidate, x))
        if not error <= limit:
            return error, f"relative error {error:.1e} against the fp64 product, more than {limit:.0e}"
        if self._quantizes_output(candidate) and (share := self._outlier_fraction(candidate)) > 0:  # type: ignore[arg-type]
            return error, f"quantizes {share:.1%} for the next product by more than a step beside the fp64 product"
        return error, None

    @torch.no_grad()
    def quantization_error(self, candidate: nn.Module) -> float | None:
        """Relative error against the fp64 product of the unquantized operands; None for 16-bit candidates."""
        if not _is_low(candidate):
            return None
        return self._error(candidate(*self.operands), None, self.x)

    def _forms(self, candidate: nn.Module) -> list[Tensor | Quantized]:
        """Forms in which the candidate may receive X: in 16 bits, and quantized by the product before it."""
        forms: list[Tensor | Quantized] = [self.x]
        if _is_low(candidate) and candidate.takes("group128") and self.x.shape[1] % SCALE_GROUP == 0:  # type: ignore[operator]
            forms.append(quantize(self.x, group=SCALE_GROUP))
        return forms

    def _quantizes_output(self, candidate: nn.Module) -> bool:
        return _is_low(candidate) and candidate.output_scales is not None and not self.spec.residual

    def _outlier_fraction(self, candidate: FusedProduct) -> float:
        """Fraction of the quantized outputs whose error exceeds an e4m3 step plus the allowed error of sums, which is relative to
        their group's largest value: near zero it is more than a step.
        """
        values, scales = candidate.run_quantized(self.x)
        limit, wrong = limit_of(candidate, self.limit), 0
        for first in range(0, len(self.x), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            expected = self._compute(candidate, self.x[part], None).view(len(scales[part]), scales.shape[1], -1)
            dequantized = values[part].double().view_as(expected) * scales[part, :, None].double()
            room = expected.abs() * E4M3_STEP + expected.abs().amax(dim=2, keepdim=True) * limit
            wrong += int(((dequantized - expected).abs() <= room).logical_not().sum())
        return wrong / values.numel()

    def _compute(self, low: FusedProduct | None, x: Tensor | Quantized, residual: Tensor | None) -> Tensor:
        """The fp64 reference [M, N]; from the quantized operands of `low`, if given."""
        bias = None if self.spec.weight.bias is None else self.spec.weight.bias.double()
        of_x, of_w = (x, self.spec.weight.weight) if low is None else low.multiplied(x)
        assert isinstance(of_x, Tensor)  # only low-precision candidates get a quantized X
        expected = torch.nn.functional.linear(of_x.double(), of_w.double(), bias)
        expected = ACTIVATIONS[self.spec.activation](expected)
        return expected if residual is None else expected + residual.double()

    def _error(self, y: Tensor, candidate: nn.Module | None, x: Tensor | Quantized) -> float:
        """Relative error against the fp64 reference, for a low-precision candidate that of its quantized operands."""
        if y.shape != (len(self.x), len(self.spec.weight.weight)):
            return math.inf
        low = candidate if candidate is not None and _is_low(candidate) else None

        def compute_part(part: Any) -> Tensor:
            rows = Quantized(x.values[part], x.scales[part]) if isinstance(x, Quantized) else x[part]
            residual = None if self.residual is None else self.residual[part]
            return self._compute(low, rows, residual)  # type: ignore[arg-type]

        return error_in_chunks(y, compute_part, CHUNK_ROWS)


def _is_low(candidate: nn.Module) -> bool:
    return isinstance(candidate, FusedProduct) and candidate.precision != "none"
