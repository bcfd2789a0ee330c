"""One way to compute a product, as the benchmark sees it: it makes operands and calls, and is checked before timing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.bench.poison import poisoned_memory
from sparsefront_kernels.bench.timing import Latency, copies_for, time_calls

# Relative Frobenius error against float64; NaN never passes.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 5e-3, torch.float32: 4e-6}


@dataclass(frozen=True)
class Contender:
    """A kernel on one problem.

    Args:
        family, kernel: storage family and kernel, as they stand in the results.
        pattern, granularity, distribution: of the weight it multiplies by; granularity 0 where it has none.
        layout: of X and Y, "row_major" or "feature_major"; any change of layout that it needs is inside its time.
        sparsity: of the weight, as it is.
        operand_bytes: of weight, indices, X and Y.
        weight_bytes: of weight and indices.
        make: gives a call on operands of its own, which writes all of a fresh Y.
        as_rows: Y as the call gives it → [M, N].
        expected: Y [M, N] in float64.
    """

    family: str
    kernel: str
    pattern: str
    granularity: int
    distribution: str
    layout: str
    sparsity: float
    operand_bytes: int
    weight_bytes: int
    make: Callable[[], Callable[[], Tensor]]
    as_rows: Callable[[Tensor], Tensor]
    expected: Tensor


@dataclass(frozen=True)
class Measured:
    """A contender's error against float64, and its latency where the error is allowed."""

    relative_error: float
    correct: bool
    latency: Latency | None


def measure(contender: Contender, *, samples: int) -> Measured:
    """Check the contender on poisoned memory, and time it if it is right."""
    call = contender.make()
    with poisoned_memory():
        y = call()
    error = relative_error(contender.as_rows(y), contender.expected)
    correct = error <= TOLERANCE[y.dtype]
    del y
    if not correct:
        return Measured(error, False, None)
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    calls = [call, *(contender.make() for _ in range(copies_for(contender.operand_bytes, l2_bytes) - 1))]
    return Measured(error, True, time_calls(calls, samples=samples))


def relative_error(y: Tensor, expected: Tensor) -> float:
    """‖y − expected‖ / ‖expected‖ in float64; infinite where y holds a NaN, so that no comparison lets it pass."""
    error = torch.linalg.norm(y.double() - expected) / torch.linalg.norm(expected).clamp(min=1e-300)
    return float(torch.nan_to_num(error, nan=torch.inf))
