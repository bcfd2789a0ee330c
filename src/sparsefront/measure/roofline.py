"""The least time that a product can take on the GPU at hand, from two rates measured there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch
from sparsefront_kernels import Problem

from sparsefront.gpu_sharing.access import alone
from sparsefront.measure.latency import cuda_ms

COPY_BYTES = 1 << 30
GEMM_SIDE = 8192
WARMUP, SAMPLES = 3, 10


@dataclass(frozen=True)
class MeasuredRates:
    """What this GPU reached: a device-to-device copy, counting bytes read and written, and a large dense product."""

    copy_gb_per_s: float
    dense_tflop_per_s: float


def measured_rates(device: torch.device, dtype: torch.dtype) -> MeasuredRates | None:
    """Both rates, measured once per process, device and dtype; None on a CPU, where kernels are references.

    The product runs under torch's current TF32 setting, as the network does.
    """
    if device.type != "cuda":
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    return _measure(torch.device("cuda", index), dtype)


@cache
def _measure(device: torch.device, dtype: torch.dtype) -> MeasuredRates:
    with alone(device):
        return MeasuredRates(copy_gb_per_s=_copy_rate(device), dense_tflop_per_s=_dense_rate(device, dtype))


def _copy_rate(device: torch.device) -> float:
    size = min(COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _median_ms(lambda: target.copy_(source), device) / 1e6


def _dense_rate(device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * GEMM_SIDE**3 / _median_ms(lambda: torch.mm(left, right.t(), out=product), device) / 1e9


def roofline_bound_us(problem: Problem, *, density: float, weight_bytes: int, rates: MeasuredRates) -> float:
    """max(2*M*K*N*density / dense rate, bytes of weights, X and Y / copy rate), in microseconds.

    Args:
        density: fraction of weights kept.
        weight_bytes: values and indices as stored.
    """
    compute_us = 2 * problem.m * problem.k * problem.n * density / (rates.dense_tflop_per_s * 1e6)
    moved = weight_bytes + problem.m * (problem.k + problem.n) * problem.dtype.itemsize
    return max(compute_us, moved / (rates.copy_gb_per_s * 1e3))


def roofline_fraction(
    problem: Problem, *, latency_us: float, density: float, weight_bytes: int, rates: MeasuredRates
) -> float:
    """Roofline bound / measured: 1 is the limit. A layer that runs dense has its own bound, with density 1."""
    return roofline_bound_us(problem, density=density, weight_bytes=weight_bytes, rates=rates) / latency_us


def _median_ms(function: Callable[[], object], device: torch.device) -> float:
    """Device time of a long-running function; events around it, since milliseconds dwarf a launch."""
    return median([cuda_ms(function, device) for _ in range(WARMUP + SAMPLES)][WARMUP:])
