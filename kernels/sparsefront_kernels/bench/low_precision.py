"""Products with quantized X and W: peers of the fp8 blocks.

dense_fp8                   row-wise scales, `torch._scaled_mm`, fast accumulation
dense_fp8_tensorwise        one scale of X and one of W, the same call
dense_int8                  `torch._int_mm`, and the pass that scales its sums
semi_structured_fp8_sums    2:4, cuSPARSELt, sums without scales; the fastest algorithm that was right under load
semi_structured_fp8         the same, and the pass that scales them
semi_structured_fp8_torchao 2:4, torchao's CUTLASS kernel, scaled
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels import registry
from sparsefront_kernels.bench.timing import Latency, copies_for, time_calls
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import LARGEST, Quantized, quantize
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.semi_structured.low_precision import semi_structured_sums, sums_in

TENSORWISE, SUMS = "dense_fp8_tensorwise", "semi_structured_fp8_sums"
NAMES = ("dense_fp8", TENSORWISE, "dense_int8", SUMS, "semi_structured_fp8", "semi_structured_fp8_torchao")
TUNING_SAMPLES = 5
MOST_COPIES = 16
Operands = tuple[Quantized, Any]  # X and the packed weight


@dataclass(frozen=True)
class LowPrecisionProduct:
    """One product in low precision, with its own operands.

    Args:
        name: in `NAMES`.
        operand_bytes: of X, the weight and Y.
        operands: index of a copy -> X and the weight; random, deterministic per index.
        product: (X, weight) -> Y [M, N].
        reference: (X, weight) -> float64 Y [M, N].
    """

    name: str
    operand_bytes: int
    operands: Callable[[int], Operands]
    product: Callable[[Any, Any], Tensor]
    reference: Callable[[Any, Any], Tensor]
    _made: list[Operands] = field(default_factory=list)

    def calls(self, count: int) -> list[Callable[[], Tensor]]:
        """That many calls, each with its own operands."""
        self._made.extend(self.operands(copy) for copy in range(len(self._made), count))
        return [lambda x=x, weight=weight: self.product(x, weight) for x, weight in self._made[:count]]

    def error(self) -> float:
        """The relative error (Frobenius) of one call against float64 with the same operands."""
        (call,) = self.calls(1)
        y, expected = call().double(), self.reference(*self._made[0])
        return float(torch.linalg.norm(y - expected) / torch.linalg.norm(expected))

    def latency(self, *, samples: int) -> Latency:
        """Time graph replays with operands that rotate through more than the L2 cache."""
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        count = copies_for(self.operand_bytes, l2_bytes, most=MOST_COPIES)
        return time_calls(self.calls(count), samples=samples)


def low_precision_products(m: int, k: int, n: int, *, names: Sequence[str] = NAMES) -> list[LowPrecisionProduct]:
    """Those of `NAMES` that support this product on the current CUDA device, with Y in bf16; 2:4 ones are tuned.

    Args:
        m, k, n: of the product.
    Raises:
        UnsupportedProblem: a kernel does not support it; gives the reason.
    """
    problem = Problem(m, k, n, torch.bfloat16, torch.device("cuda"))
    return [_tensorwise(problem) if name == TENSORWISE else _of_entry(name, problem) for name in names]


def _of_entry(name: str, problem: Problem) -> LowPrecisionProduct:
    """A kernel of the registry with its scales, or its sums alone."""
    entry = registry.entry(name.removesuffix("_sums"))
    entry.require_supported(_stored(entry.family, problem, 0), problem)

    def operands(copy: int) -> Operands:
        return quantize(_x(problem, copy), entry.precision), entry.pack(_stored(entry.family, problem, copy))

    def reference(x: Quantized, packed: Any) -> Tensor:
        assert entry.multiplied is not None
        of_x, of_w = (part.double() for part in entry.multiplied(x, packed))
        return of_x @ of_w.t() if name != SUMS else (of_x / x.scales) @ (of_w / packed.scales).t()

    def product(x: Quantized, packed: Any) -> Tensor:
        if name != SUMS:
            return entry.run(x, packed, layout=problem.layout)
        sums_dtype, _ = sums_in(entry.precision, problem.dtype)
        return semi_structured_sums(x.values, packed.compressed, None, None, problem.n, sums_dtype, False)[: problem.m]

    share = 1.0 if entry.family == "dense" else 0.625
    measured = LowPrecisionProduct(name, _operand_bytes(problem, share), operands, product, reference)
    tune(entry, measured, problem)
    return measured


def tune(entry: KernelEntry, product: LowPrecisionProduct, problem: Problem) -> None:
    """Record the fastest launch of a kernel for the problem of its product."""
    tunable = entry.tunable_in(problem.layout)
    if tunable is None:
        return
    calls, (_, packed) = product.calls(1), product._made[0]
    if tunable.measured(packed, problem):
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


def _tensorwise(problem: Problem) -> LowPrecisionProduct:
    def by_tensor(matrix: Tensor) -> Quantized:
        return quantize(matrix, scale=(matrix.float().abs().amax() / LARGEST["fp8"]))

    def product(x: Quantized, weight: Quantized) -> Tensor:
        return torch._scaled_mm(
            x.values, weight.values.t(), x.scales, weight.scales, out_dtype=problem.dtype, use_fast_accum=True
        )

    return LowPrecisionProduct(
        TENSORWISE,
        _operand_bytes(problem, 1.0),
        operands=lambda copy: (by_tensor(_x(problem, copy)), by_tensor(_weight(problem, copy))),
        product=product,
        reference=lambda x, weight: (x.values.double() @ weight.values.double().t()) * x.scales * weight.scales,
    )


def _x(problem: Problem, copy: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(2 * copy)
    return torch.randn(problem.m, problem.k, device="cuda", dtype=problem.dtype, generator=generator)


def _weight(problem: Problem, copy: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(2 * copy + 1)
    weight = torch.randn(problem.n, problem.k, device="cuda", generator=generator) / problem.k**0.5
    return weight.to(problem.dtype)


def _stored(family: str, problem: Problem, copy: int) -> SparseFormat:
    weight = _weight(problem, copy)
    if family == "dense":
        return DenseFormat((problem.n, problem.k), weight)
    groups = weight.float().abs().view(problem.n, -1, 4)
    keeps = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, groups.topk(2, dim=2).indices, value=True)
    return SemiStructuredFormat.from_dense(weight, keeps.view_as(weight))


def _operand_bytes(problem: Problem, kept: float) -> int:
    """Bytes of X and of this fraction of W in 8 bits, and of Y."""
    read = problem.m * problem.k + kept * problem.n * problem.k
    return int(read + problem.dtype.itemsize * problem.m * problem.n)
