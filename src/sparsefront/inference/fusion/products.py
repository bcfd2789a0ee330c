"""Kernels of fused products: candidates, correctness check, and tuning."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat, entries, entry, labeled
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.quantized.quantize import LARGEST, Quantized, quantize
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import yield_gpu
from sparsefront.inference.autotune import Candidate, without_slower
from sparsefront.inference.choice import DENSE, KernelChoice
from sparsefront.inference.fusion.fused_product import SCALE_GROUP, FusedProduct, in_layout, layout_name
from sparsefront.inference.fusion.plan import ProductReport
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.inference.fusion.timed_products import TimedProduct
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.correctness import (
    error_of_parts,
    limit_of,
    product_error_limit,
    rows_to_compare,
    scale_to_amax,
)
from sparsefront.measure.memory import stored_bytes
from sparsefront.measure.search_time import CHECKS, spending
from sparsefront.measure.timers import assume_launch, forget_launch, launch_in_use

# Candidate kernels of a product: in its layouts, or in others plus the cost of changing the layout.

# Family of the pattern -> others that can store such masks and may be faster: blocks as tiles, n:m at 50 % as 2:4.
ALSO_STORED_AS = {"blocked": ("gathered",), "n_m": ("semi_structured",)}


def dense_candidate(weight: ProductWeight) -> Candidate:
    return Candidate(
        entry(DENSE), "row_major", DenseFormat((weight.weight.shape[0], weight.weight.shape[1]), weight.weight)
    )


def low_dense_candidates(
    weight: ProductWeight, problem: Problem, choice: KernelChoice, precision: Precision
) -> tuple[list[Candidate], dict[str, str]]:
    """Low-precision dense kernels that can run the weight, and label -> reason for the others."""
    kernels = [kernel for kernel in precision.kernels() if kernel.family == "dense"]
    kernels = [kernel for kernel in kernels if kernel.is_reference == _is_plain(problem.device, choice)]
    dense = dense_candidate(weight).format
    reasons = {kernel: _low_reason(kernel, dense, weight, problem, precision) for kernel in kernels}
    usable = [Candidate(kernel, "row_major", dense) for kernel, reason in reasons.items() if reason is None]
    return usable, {kernel.name: reason for kernel, reason in reasons.items() if reason is not None}


def _low_reason(
    kernel: KernelEntry, stored: SparseFormat, weight: ProductWeight, problem: Problem, precision: Precision
) -> str | None:
    """Why a low-precision kernel cannot run a product, or None."""
    if problem.layout != "row_major":
        return f"takes row-major activations, not {problem.layout}"
    reason = precision.unsupported_layer(weight.layers, (problem.n, problem.k), problem.dtype)
    return reason or kernel.unsupported_reason(stored, problem)


def try_all(label: str) -> str | None:
    """A `why_not` that tries every kernel."""
    return None


def try_only(wanted: str | None) -> Callable[[str], str | None]:
    """A `why_not` that tries one kernel alone."""
    return lambda kernel: None if kernel == wanted else f"not tried: {wanted} was faster in an equal product"


def sparse_candidates(
    weight: ProductWeight,
    problem: Problem,
    choice: KernelChoice,
    why_not: Callable[[str], str | None] = try_all,
    precision: Precision = IN_16_BITS,
) -> tuple[list[Candidate], dict[str, str]]:
    """Usable kernels in the registry's order, low precision first, and label -> reason for other wanted ones.

    Args:
        problem: with the product's layout.
        why_not: label -> why not to try it, or None; the weight is not converted for kernels that are not tried.
        precision: of low-precision kernels to try next to 16-bit ones.
    """
    usable: list[Candidate] = []
    unsupported: dict[str, str] = {}
    if weight.stored is None:
        return usable, unsupported
    formats: dict[str, SparseFormat | str] = {weight.family: weight.stored}

    def unsupported_reason(kernel: KernelEntry, layout: str) -> str | None:
        if kernel.family not in formats:
            formats[kernel.family] = _to_family(kernel.family, weight)
        stored = formats[kernel.family]
        if isinstance(stored, str):
            return stored
        if kernel.precision != "none":
            return _low_reason(kernel, stored, weight, problem, precision)
        return kernel.unsupported_reason(stored, replace(problem, layout=layout))

    for kernel in (*precision.kernels(), *entries()):
        if not _allowed(kernel, weight.family, problem.device, choice):
            continue
        for layouts in _layouts_to_try(kernel, problem.layout):
            reasons = {
                layout: why_not(kernel.label(layout)) or unsupported_reason(kernel, layout) for layout in layouts
            }
            unsupported |= {kernel.label(layout): reason for layout, reason in reasons.items() if reason is not None}
            if runs := [layout for layout, reason in reasons.items() if reason is None]:
                stored = formats[kernel.family]
                assert not isinstance(stored, str)  # else no layout would be usable
                usable += [Candidate(kernel, layout, stored) for layout in runs]
                break
    if choice.name is None:
        usable = without_slower(usable, unsupported)
    return usable, unsupported


def _layouts_to_try(kernel: KernelEntry, layout: str) -> Iterator[list[str]]:
    """The product's layout if the kernel supports it; then, for the case that it cannot run, the kernel's other layouts."""
    yield [own for own in kernel.layouts if own == layout]
    yield [other for other in kernel.layouts if other != layout]


def _allowed(kernel: KernelEntry, canonical: str, device: torch.device, choice: KernelChoice) -> bool:
    if choice.name is not None:
        return kernel.name == labeled(choice.name)[0].name
    plain = _is_plain(device, choice)
    if kernel.is_reference != plain:
        return False
    if choice.family is not None:
        return kernel.family == choice.family
    # on a CPU 2:4 runs the family that is measured on a GPU
    also = () if plain and kernel.precision == "none" else ALSO_STORED_AS.get(canonical, ())
    return kernel.family in (canonical, *also)


def _is_plain(device: torch.device, choice: KernelChoice) -> bool:
    return choice.mode == "reference" or device.type == "cpu"


def _to_family(family: str, weight: ProductWeight) -> SparseFormat | str:
    parameters: dict[str, Any] = {}
    if family == "gathered":
        if not isinstance(weight.stored, BlockedFormat):
            return f"these masks are stored as {weight.family}, not as gathered"
        parameters = {"tile": weight.stored.block[0], "drop_empty_outputs": False}
    elif (order := getattr(weight.stored, "input_order", None)) is not None:
        parameters = {"input_order": order}
    try:
        return FORMATS[family].from_dense(weight.weight, weight.mask, **parameters)
    except (ValueError, TypeError) as error:  # another structure, or the format needs more parameters of the pattern
        return str(error)


# Correctness check of fused products, epilogue included, against fp64 with the masked weight.

CPU_ROWS = 64  # M on a CPU: references treat every row alike
CHUNK_ROWS = 8192  # of the fp64 product at a time
E4M3_STEP = 2.0**-3  # relative distance of neighboring values
SEPARATE = 2.0  # factor of the limit for an epilogue, which rounds again


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
            return error, f"quantises {share:.1%} for the next product by more than a step beside the fp64 product"
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
        values, scales = candidate.quantized_output(self.x)
        limit, wrong = limit_of(candidate, self.limit), 0
        for first in range(0, len(self.x), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            expected = self._expected(candidate, self.x[part], None).view(len(scales[part]), scales.shape[1], -1)
            dequantized = values[part].double().view_as(expected) * scales[part, :, None].double()
            room = expected.abs() * E4M3_STEP + expected.abs().amax(dim=2, keepdim=True) * limit
            wrong += int(((dequantized - expected).abs() <= room).logical_not().sum())
        return wrong / values.numel()

    def _expected(self, low: FusedProduct | None, x: Tensor | Quantized, residual: Tensor | None) -> Tensor:
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
        parts: list[Any] = [slice(first, first + CHUNK_ROWS) for first in range(0, len(self.x), CHUNK_ROWS)]
        if (some := rows_to_compare(self.x)) is not None:
            if not y.isfinite().all():
                return math.inf
            parts = [some]

        def expected(part: Any) -> Tensor:
            rows = Quantized(x.values[part], x.scales[part]) if isinstance(x, Quantized) else x[part]
            residual = None if self.residual is None else self.residual[part]
            return self._expected(low, rows, residual)  # type: ignore[arg-type]

        return error_of_parts((y[part], expected(part)) for part in parts)


def _is_low(candidate: nn.Module) -> bool:
    return isinstance(candidate, FusedProduct) and candidate.precision != "none"


class ProductTuning:
    """Builds and checks the candidates of one product.

    Attributes:
        unsupported: kernel -> why it cannot be used, or was not tried.
        launches: kernel -> launches that were fast for a similar product; the first is used until others are timed.
    """

    def __init__(self, spec: ProductSpec, m: int, feature_major: bool, precision: Precision = IN_16_BITS) -> None:
        (n, k), like = spec.weight.weight.shape, spec.weight.weight
        layout = layout_name(
            x_feature_major=feature_major and spec.x_stream, y_feature_major=feature_major and spec.y_stream
        )
        self.spec, self.name = spec, "+".join(spec.weight.layers)
        self.problem = Problem(m, k, n, like.dtype, like.device, layout)
        self.precision = precision
        reason = precision.unsupported_layer(spec.weight.layers, (n, k), like.dtype)
        self.x_scale = None if reason is not None else precision.x_scale(spec.weight.layers)
        amax = None if self.x_scale is None else self.x_scale * LARGEST["fp8"]
        self.check = FusedCorrectnessCheck(spec, m, feature_major=feature_major, amax=amax)
        self.unsupported: dict[str, str] = {}
        self.launches: Mapping[str, Sequence[Any]] = {}
        self._products: dict[str, tuple[FusedProduct, float]] = {}
        self._failed: dict[str, str] = {}

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Operands for timing, with all rows; on a CPU the check uses only the first of them."""
        few = self.check.operands
        repeats = -(-self.problem.m // len(few[0]))
        if repeats == 1:
            return few
        return tuple(self._laid_out_like(operand, operand.repeat(repeats, 1)[: self.problem.m]) for operand in few)

    @staticmethod
    def _laid_out_like(few: Tensor, rows: Tensor) -> Tensor:
        return in_layout(rows, feature_major=few.stride(0) == 1 and few.stride(1) != 1)

    def product(self, candidate: Candidate) -> FusedProduct | None:
        """The product with this kernel; None where it fails or is wrong."""
        name = candidate.label
        if name not in self._products and name not in self._failed:
            yield_gpu(self.problem.device)
            self._try(name, candidate)
        if name in self._failed:
            self.unsupported[name] = self._failed[name]  # `unsupported` may be a new dict by now
            return None
        return self._products[name][0]

    def _try(self, name: str, candidate: Candidate) -> None:
        product = None
        try:
            product = FusedProduct(
                candidate.entry,
                candidate.format,
                self.spec.weight.bias,
                kernel_layout=candidate.layout,
                activation=self.spec.activation,
                x_feature_major=self.problem.layout in X_FEATURE_MAJOR,
                y_feature_major=self.problem.layout in Y_FEATURE_MAJOR,
                x_scale=self.x_scale if candidate.entry.precision != "none" else None,
            )
            if launches := self.launches.get(name, ()):
                assume_launch(product, self.problem, launches[0])
            error, reason = self.check.evaluate(product)
        except Exception as raised:  # a kernel may fail in any way; others remain, and the report has the reason
            reason = failure_reason(raised)
        if reason is not None:
            self.reject(name, reason)
            if product is not None:
                forget_launch(product, self.problem)
        elif product is not None:
            self._products[name] = (product, error)

    def reject(self, name: str, reason: str) -> None:
        """Make a kernel unsupported."""
        self.unsupported[name] = self._failed[name] = reason
        self._products.pop(name, None)

    def update_error(self, name: str, error: float) -> None:
        """Set the relative error of a kernel with its current launch parameters."""
        self._products[name] = self._products[name][0], error

    def report(self, product: FusedProduct, times: TimedProduct | None) -> ProductReport:
        spec, problem = self.spec, self.problem
        latencies = {} if times is None else dict(times.latencies_us)
        return ProductReport(
            layers=spec.weight.layers,
            kernel=product.kernel_name,
            family=product.format.family,
            m=problem.m,
            k=problem.k,
            n=problem.n,
            density=spec.density,
            layout=problem.layout,
            activation=spec.activation,
            residual=spec.residual,
            weight_bytes=stored_bytes(product),
            vanished_inputs=spec.vanished_inputs,
            vanished_outputs=spec.vanished_outputs,
            latency_us=latencies.get(product.kernel_name),
            candidates=latencies,
            unsupported=self.unsupported,
            launch=launch_in_use(product, problem),
            relative_error=self._products[product.kernel_name][1],
            quantization_error=self.check.quantization_error(product),
            timed_as=None if times is None or times.name == self.name else times.name,
            timed_like=None if times is None else times.like,
        )
