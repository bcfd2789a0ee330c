"""The roofline bound of a product, from two rates measured in the same run."""

from dataclasses import dataclass
from statistics import median

import torch

from sparsefront_kernels.bench.timing import SAMPLES, WARMUP, elapsed_us, time_calls

COPY_BYTES = 1 << 31
GEMM_SIDE = 8192


@dataclass(frozen=True)
class Rates:
    """What the GPU reached: a large dense product, and a device-to-device copy counting bytes read and written."""

    dense_tflops: float
    copy_gb_per_s: float


def measured_rates(dtype: torch.dtype, device: torch.device) -> Rates:
    """Both rates, on random data."""
    left, right = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device, dtype=dtype) for _ in range(2))
    dense_us = time_calls([lambda: left @ right.t()]).median_us
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # not in a graph: a graph's copy node reached 2.6 TB/s where the same copy by itself reached 4.3
    copy_us = median([elapsed_us(lambda: target.copy_(source)) for _ in range(WARMUP + SAMPLES)][WARMUP:])
    return Rates(2 * GEMM_SIDE**3 / dense_us / 1e6, 2 * COPY_BYTES / copy_us / 1e3)


def roofline_bound_us(
    m: int, k: int, n: int, *, density: float, weight_bytes: int, element_bytes: int, rates: Rates
) -> float:
    """max(2·M·K·N·density / dense rate, bytes of weights, X and Y / copy rate): the roofline bound in microseconds."""
    compute_us = 2 * m * k * n * density / (rates.dense_tflops * 1e6)
    moved = weight_bytes + m * (k + n) * element_bytes
    return max(compute_us, moved / (rates.copy_gb_per_s * 1e3))
