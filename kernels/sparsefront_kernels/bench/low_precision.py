"""Products with quantized X and all of Y in one dtype: baselines of fp8 and int8 kernels, timed in one process.

dense                       16 bits, cuBLAS
dense_fp8                   row-wise scales, `torch._scaled_mm`, fast accumulation
dense_fp8_tensorwise        one scale of X and one of W, the same call
dense_int8                  `torch._int_mm`, int32 sums, nothing scaled
dense_int8_scaled           the same, and the pass that scales them
semi_structured_fp8         2:4, cuSPARSELt, sums without scales; the fastest algorithm that was right under load
semi_structured_fp8_scaled  the same, and the pass that scales them
semi_structured_fp8_torchao 2:4, torchao's CUTLASS kernel, scaled
semi_structured_int8        2:4, cuSPARSELt, sums with the scales of outputs
semi_structured_int8_scaled the same, and the pass that applies the scales of rows
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels import registry
from sparsefront_kernels.bench.timing import Latency, copies_for, time_calls
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import LARGEST, Quantized, quantize
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.semi_structured.low_precision import ALPHA, semi_structured_sums, sums_in
from sparsefront_kernels.tuning.launches import TunedLaunches

NAMES = (
    "dense",
    "dense_fp8",
    "dense_fp8_tensorwise",
    "dense_int8",
    "dense_int8_scaled",
    "semi_structured_fp8",
    "semi_structured_fp8_by_output",
    "semi_structured_fp8_scaled",
    "semi_structured_fp8_torchao",
    "semi_structured_int8",
    "semi_structured_int8_by_output",
    "semi_structured_int8_scaled",
)
TUNING_SAMPLES = 5
MOST_COPIES = 16
Operands = tuple[Tensor | Quantized, Any]  # X and the packed weight


@dataclass(frozen=True)
class LowPrecisionProduct:
    """One product in low precision, with its own operands.

    Args:
        name: in `NAMES`.
        operand_bytes: of X, the weight and Y.
        operands: index of a copy -> X and the weight; random, deterministic per index.
        product: (X, weight) -> Y [M, N].
        factors: remaining factors of Y, for a check; None: none.
        reference: (X, weight) -> float64 Y [M, N].
    """

    name: str
    operand_bytes: int
    operands: Callable[[int], Operands]
    product: Callable[[Any, Any], Tensor]
    reference: Callable[[Any, Any], Tensor]
    factors: Callable[[Any, Any], Tensor] | None = None
    _made: list[Operands] = field(default_factory=list)

    def calls(self, count: int) -> list[Callable[[], Tensor]]:
        """That many calls, each with its own operands."""
        self._made.extend(self.operands(copy) for copy in range(len(self._made), count))
        return [lambda x=x, weight=weight: self.product(x, weight) for x, weight in self._made[:count]]

    def error(self) -> float:
        """The relative error (Frobenius) of one call against float64 with the same operands."""
        (call,) = self.calls(1)
        x, weight = self._made[0]
        y, expected = call().double(), self.reference(x, weight)
        y = y if self.factors is None else y * self.factors(x, weight).double()
        return float(torch.linalg.norm(y - expected) / torch.linalg.norm(expected))

    def latency(self, *, samples: int) -> Latency:
        """Time graph replays with operands that rotate through more than the L2 cache."""
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        count = copies_for(self.operand_bytes, l2_bytes, most=MOST_COPIES)
        return time_calls(self.calls(count), samples=samples)


def low_precision_products(
    m: int, k: int, n: int, *, dtype: torch.dtype = torch.bfloat16, names: Sequence[str] = NAMES
) -> list[LowPrecisionProduct]:
    """Those of `NAMES` that support this product on the current CUDA device; 2:4 ones are tuned.

    Args:
        m, k, n: of the product.
        dtype: of Y, and of the 16-bit product.
    Raises:
        UnsupportedProblem: a kernel does not support it; gives the reason.
    """
    return [_BUILDERS[name](name, Problem(m, k, n, dtype, torch.device("cuda"))) for name in names]


def tune(entry: KernelEntry, packed: Any, problem: Problem, calls: Sequence[Callable[[], object]]) -> None:
    """Record the fastest launch of the kernel for the problem.

    Args:
        calls: of the kernel on this problem.
    """
    tunable: TunedLaunches | None = entry.tunable_in(problem.layout)
    if tunable is None or tunable.measured(packed, problem):
        return
    times = {}
    try:
        for launch in tunable.candidates(packed, problem):
            tunable.try_out(packed, problem, launch)
            times[launch] = time_calls(calls, samples=TUNING_SAMPLES).median_us
    finally:
        tunable.end_trial(packed, problem)
    if not times:
        raise RuntimeError(f"{entry.name}: no launch is right on {problem}")
    best = min(times, key=times.__getitem__)
    tunable.remember(packed, problem, best, times[best])


def _x(problem: Problem, copy: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(2 * copy)
    return torch.randn(problem.m, problem.k, device="cuda", dtype=problem.dtype, generator=generator)


def _weight(problem: Problem, copy: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(2 * copy + 1)
    weight = torch.randn(problem.n, problem.k, device="cuda", generator=generator) / problem.k**0.5
    return weight.to(problem.dtype)


def _stored(family: str, problem: Problem, copy: int) -> DenseFormat | SemiStructuredFormat:
    weight = _weight(problem, copy)
    if family == "dense":
        return DenseFormat((problem.n, problem.k), weight)
    groups = weight.float().abs().view(problem.n, -1, 4)
    keeps = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, groups.topk(2, dim=2).indices, value=True)
    return SemiStructuredFormat.from_dense(weight, keeps.view_as(weight))


def _operand_bytes(problem: Problem, *, bytes_of_operands: int, kept: float = 1.0) -> int:
    read = bytes_of_operands * (problem.m * problem.k + kept * problem.n * problem.k)
    return int(read + problem.dtype.itemsize * problem.m * problem.n)


def _dense(name: str, problem: Problem) -> LowPrecisionProduct:
    return LowPrecisionProduct(
        name,
        _operand_bytes(problem, bytes_of_operands=problem.dtype.itemsize),
        operands=lambda copy: (_x(problem, copy), _weight(problem, copy)),
        product=lambda x, weight: x @ weight.t(),
        reference=lambda x, weight: x.double() @ weight.double().t(),
    )


def _of_entry(name: str, problem: Problem) -> LowPrecisionProduct:
    """The kernel in the problem's layout, scales included."""
    entry = registry.entry(name.removesuffix("_scaled").removesuffix("_by_output"))
    entry.require_supported(_stored(entry.family, problem, 0), problem)
    product = LowPrecisionProduct(
        name,
        _operand_bytes(problem, bytes_of_operands=1, kept=1.0 if entry.family == "dense" else 0.625),
        operands=lambda copy: (
            quantize(_x(problem, copy), entry.precision),
            entry.pack(_stored(entry.family, problem, copy)),
        ),
        product=lambda x, packed: entry.run(x, packed, layout=problem.layout),
        reference=lambda x, packed: _exact(entry, x, packed),
    )
    calls = product.calls(1)
    tune(entry, product._made[0][1], problem, calls)
    return product


def _exact(entry: KernelEntry, x: Quantized, packed: Any) -> Tensor:
    assert entry.multiplied is not None
    of_x, of_w = entry.multiplied(x, packed)
    return of_x.double() @ of_w.double().t()


def _tensorwise(name: str, problem: Problem) -> LowPrecisionProduct:
    def by_tensor(matrix: Tensor) -> Quantized:
        return quantize(matrix, scale=(matrix.float().abs().amax() / LARGEST["fp8"]))

    def product(x: Quantized, weight: Quantized) -> Tensor:
        return torch._scaled_mm(
            x.values, weight.values.t(), x.scales, weight.scales, out_dtype=problem.dtype, use_fast_accum=True
        )

    return LowPrecisionProduct(
        name,
        _operand_bytes(problem, bytes_of_operands=1),
        operands=lambda copy: (by_tensor(_x(problem, copy)), by_tensor(_weight(problem, copy))),
        product=product,
        reference=lambda x, weight: (x.values.double() @ weight.values.double().t()) * x.scales * weight.scales,
    )


def _int8_sums(name: str, problem: Problem) -> LowPrecisionProduct:
    return LowPrecisionProduct(
        name,
        _operand_bytes(problem, bytes_of_operands=1),
        operands=lambda copy: (quantize(_x(problem, copy), "int8"), quantize(_weight(problem, copy), "int8")),
        product=lambda x, weight: torch._int_mm(x.values, weight.values.t()),
        reference=lambda x, weight: x.values.double() @ weight.values.double().t(),
    )


def _semi_structured_sums(name: str, problem: Problem) -> LowPrecisionProduct:
    by_output = name.endswith("_by_output")
    whole = _of_entry(name, replace(problem, layout="row_to_feature") if by_output else problem)  # tunes it
    dtype, scaled = sums_in(registry.entry(name.removesuffix("_by_output")).precision, problem.dtype)

    def product(x: Quantized, packed: Any) -> Tensor:
        alpha = packed.alpha if scaled else None
        sums = semi_structured_sums(x.values, packed.compressed, alpha, None, problem.n, dtype, by_output)
        return sums.t()[: problem.m] if by_output else sums[: problem.m]

    def factors(x: Quantized, packed: Any) -> Tensor:
        return x.scales / ALPHA if scaled else x.scales * packed.scales.t()

    return LowPrecisionProduct(
        name, whole.operand_bytes, whole.operands, product, whole.reference, factors, whole._made
    )


_BUILDERS = {
    "dense": _dense,
    "dense_fp8": _of_entry,
    "dense_fp8_tensorwise": _tensorwise,
    "dense_int8": _int8_sums,
    "dense_int8_scaled": _of_entry,
    "semi_structured_fp8": _semi_structured_sums,
    "semi_structured_fp8_by_output": _semi_structured_sums,
    "semi_structured_fp8_scaled": _of_entry,
    "semi_structured_fp8_torchao": _of_entry,
    "semi_structured_int8": _semi_structured_sums,
    "semi_structured_int8_by_output": _semi_structured_sums,
    "semi_structured_int8_scaled": _of_entry,
}
