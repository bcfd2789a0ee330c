"""A product of a block with its epilogue, input and output layouts, and precision."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from sparsefront_kernels import KernelEntry, Problem, SparseFormat, entries, entry
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.custom_op import is_fused_later
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.pointwise import contiguous_transpose, epilogue
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import Quantized, quantize, quantize_activated
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn
from torch.nn.functional import linear

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
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.activated_linears import epilogue_kernels
from sparsefront.measure.correctness import SEPARATE, error_in_chunks, limit_of, product_error_limit, scale_to_amax
from sparsefront.measure.search_time import CHECKS, spending

# Memory layout of an activation, whose shape is always [..., features].
#
# A feature-major activation is contiguous along tokens: [B, T, d] with strides (T, 1, B·T) is a view of [d, B·T]. Modules
# exchange such views, so that signatures do not change and every operator that respects strides stays correct.


def in_layout(matrix: Tensor, *, feature_major: bool) -> Tensor:
    """[M, d] in this memory layout: itself, or a copy."""
    if matrix.stride(0 if feature_major else 1) == 1 or matrix.shape[1 if feature_major else 0] == 1:
        return matrix
    if feature_major:
        return contiguous_transpose(matrix).t()
    return contiguous_transpose(matrix.t())


def activation_in_layout(x: Tensor, *, feature_major: bool) -> Tensor:
    """`in_layout` for [..., d]."""
    return in_layout(x.reshape(-1, x.shape[-1]), feature_major=feature_major).view(x.shape)


def layout_name(*, x_feature_major: bool, y_feature_major: bool) -> str:
    """The kernels' name for a pair of layouts."""
    return next(
        layout
        for layout in LAYOUTS
        if (layout in X_FEATURE_MAJOR, layout in Y_FEATURE_MAJOR) == (x_feature_major, y_feature_major)
    )


SCALE_GROUP = 128  # outputs per scale where a product quantizes its output
# families whose row-major kernels are as fast with a feature-major X
READS_ANY_STRIDES = ("dense", "gathered", "gathered_2_4", "blocked", "blocked_2_4")


class FusedProduct(SparseLayer):
    """[..., K] -> [..., N]: act(x · Wᵀ + bias) + residual, through one kernel, for operands with any strides.

    In low precision x may be quantized: values [..., K], with scales per row [M, 1] or per group of inputs. The layouts are
    row-major then.

    Args:
        entry: the kernel; the family `dense` is cuBLAS in any layout. Parts of the epilogue that it cannot fuse run after it.
        stored: W [N, K] in the kernel's format.
        bias: [N] of any float dtype, or None.
        kernel_layout: layout in which the kernel runs, as in `SparseLayer`.
        activation: a name of the kernels' `ACTIVATIONS`.
        x_feature_major, y_feature_major: memory layouts of x and of the result.
        x_scale: as in `SparseLayer`.
    """

    def __init__(
        self,
        entry: KernelEntry,
        stored: SparseFormat,
        bias: Tensor | None,
        *,
        kernel_layout: str | None = None,
        activation: str = "none",
        x_feature_major: bool = False,
        y_feature_major: bool = False,
        x_scale: float | None = None,
    ) -> None:
        super().__init__(entry, stored, bias, kernel_layout, x_scale)
        self.out_features, self.in_features = stored.shape
        self.activation = activation
        self.x_feature_major, self.y_feature_major = x_feature_major, y_feature_major

    @property
    def layout(self) -> str:
        return layout_name(x_feature_major=self.x_feature_major, y_feature_major=self.y_feature_major)

    @property
    def quantizes_x(self) -> bool:
        """Whether the kernel multiplies X in low precision, and not the weight alone."""
        return self.precision != "none" and bool(self._entry.takes_scales)

    @property
    def output_scales(self) -> str | None:
        """Scales of its quantized output, as in `takes_scales`: "group128" (per row and 128 outputs) if the kernel can quantize;
        else "row", in one pass with the activation. None in 16 bits, or where that saves no pass.
        """
        if self._entry.quantized_run is not None and self.out_features % SCALE_GROUP == 0:
            return "group128"
        return "row" if self.precision == "fp8" and self.activation != "none" else None

    def takes(self, scales: str) -> bool:
        """Whether x may be in e4m3 with such scales; not if the product has a static scale."""
        return self.precision == "fp8" and scales in self._entry.takes_scales and self.x_scale is None

    def forward(self, x: Tensor | Quantized, residual: Tensor | None = None) -> Tensor:
        """Runs in the weight's dtype, under autocast too."""
        device = _values(x).device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                dtype = self.format.dtype
                return self._forward(self._cast(x), None if residual is None else residual.to(dtype), self.activation)
        return self._forward(x, residual, self.activation)

    def without_epilogue(self, x: Tensor) -> Tensor:
        """x · Wᵀ + bias, for callers that compute the epilogue themselves."""
        with torch.autocast(x.device.type, enabled=False):
            return self._forward(x.to(self.format.dtype), None, "none")

    def run_quantized(self, x: Tensor | Quantized) -> Quantized:
        """act(x · Wᵀ + bias) quantized for another product: values [..., N], and scales as in `output_scales`."""
        with torch.autocast(_values(x).device.type, enabled=False):
            rows = self.entered(self._rows(self._cast(x)))
            if self.output_scales == "group128":
                run = self._entry.quantized_run
                assert run is not None  # see `output_scales`
                y = run(rows, self._operand, self.bias, activation=self.activation)
            else:
                y = quantize_activated(self._entry.run(rows, self._operand, self.bias), self.activation)
        return Quantized(y.values.view(*_values(x).shape[:-1], self.out_features), y.scales)

    def _cast(self, x: Tensor | Quantized) -> Tensor | Quantized:
        return x.to(self.format.dtype) if isinstance(x, Tensor) else x

    def _rows(self, x: Tensor | Quantized) -> Any:
        """x as [M, K]."""
        rows = _values(x).reshape(-1, self.in_features)
        return rows if isinstance(x, Tensor) else Quantized(rows, x.scales)

    def _forward(self, x: Tensor | Quantized, residual: Tensor | None, activation: str) -> Tensor:
        rows = self._rows(x)
        added = None if residual is None else residual.reshape(-1, self.out_features)
        if self.emulates:
            y = self.emulated(rows, activation, added)
        elif self._entry.fuses_epilogue:
            y = in_layout(self._run_fused(rows, added, activation), feature_major=self.y_feature_major)
        elif self.y_feature_major:
            y = self._feature_major_then_epilogue(rows, added, activation)
        else:
            y = self._row_major_then_epilogue(rows, added, activation)
        return y.view(*_values(x).shape[:-1], self.out_features)

    def _run_fused(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], with the epilogue in the kernel."""
        y_feature_major = self.kernel_layout in Y_FEATURE_MAJOR
        y = self._entry.run(
            self._lay_out(rows),
            self._operand,
            self.bias,
            layout=self.kernel_layout,
            activation=activation,
            residual=added.t() if added is not None and y_feature_major else added,
        )
        return y.t() if y_feature_major else y

    def _row_major_then_epilogue(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], row-major: the kernel adds the bias, the rest of the epilogue runs after it."""
        weight = self._plain_weight
        if weight is not None:
            y = linear(rows, weight, None if self.bias is None else self.bias.to(rows.dtype))
        else:
            y = in_layout(self._kernel(rows, self.bias), feature_major=False)
        if activation == "none" and added is None:
            return y
        if _uses_epilogue_kernel(y):
            return epilogue(y, None, activation, added)
        y = ACTIVATIONS[activation](y)
        return y if added is None else y + added

    def _feature_major_then_epilogue(self, rows: Tensor, added: Tensor | None, activation: str) -> Tensor:
        """[M, K] -> [M, N], feature-major: the bias is added after the kernel if that needs no extra pass."""
        follows = activation != "none" or added is not None
        weight = self._plain_weight
        bias = self.bias if follows or weight is not None else None
        if weight is not None:
            y = weight @ rows.t()
        else:
            y = in_layout(self._kernel(rows, None if follows else self.bias), feature_major=True).t()
        if not follows and bias is None:
            return y.t()
        if _uses_epilogue_kernel(y):
            return epilogue(y, bias, activation, None if added is None else added.t()).t()
        y = y if bias is None else y + bias.to(y.dtype)[:, None]
        y = ACTIVATIONS[activation](y).t()
        return y if added is None else y + added

    def _kernel(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        y = self._entry.run(self._lay_out(rows), self._operand, bias, layout=self.kernel_layout)
        return y.t() if self.kernel_layout in Y_FEATURE_MAJOR else y

    @property
    def _plain_weight(self) -> Tensor | None:
        """[N, K] for a dense 16-bit product, which cuBLAS runs; else None."""
        return self.format.values if isinstance(self.format, DenseFormat) and self.precision == "none" else None

    def _lay_out(self, rows: Any) -> Any:
        """X in the kernel's layout."""
        if self.precision != "none":
            return self.entered(rows)
        if self.kernel_layout in X_FEATURE_MAJOR:
            return in_layout(rows, feature_major=True).t()
        return rows if self.format.family in READS_ANY_STRIDES else in_layout(rows, feature_major=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other._parameters = copy.deepcopy(self._parameters, memo)
        other.format = copy.deepcopy(self.format, memo)
        other._operand = copy.deepcopy(self._operand, memo)  # which may be the format itself
        return other

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}, {self.layout}"


def _values(x: Tensor | Quantized) -> Tensor:
    return x if isinstance(x, Tensor) else x.values


def _uses_epilogue_kernel(y: Tensor) -> bool:
    """Whether to run the epilogue in our own kernel; a compiler fuses it as well, and may fuse later operators too."""
    return y.is_cuda and y.dtype != torch.float64 and not is_fused_later()


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
