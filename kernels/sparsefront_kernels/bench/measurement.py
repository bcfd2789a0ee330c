"""Convert a measurement to a result row, with its roofline bound from two rates measured in the same run."""

import datetime
import functools
from dataclasses import dataclass
from statistics import median

import torch

from sparsefront_kernels.bench.masks import PATTERN
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Measured, Provider
from sparsefront_kernels.bench.rows import Row
from sparsefront_kernels.bench.timing import SAMPLES, WARMUP, elapsed_us, time_calls
from sparsefront_kernels.performance_model import Product, predict

COPY_BYTES = 1 << 31
GEMM_SIDE = 8192


@dataclass(frozen=True)
class Rates:
    """Measured rates of the GPU: a large dense product, and a device-to-device copy, counting bytes read and written."""

    dense_tflops: float
    copy_gb_per_s: float


def measured_rates(dtype: torch.dtype, device: torch.device) -> Rates:
    """Both rates, on random data."""
    left, right = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device, dtype=dtype) for _ in range(2))
    dense_us = time_calls([lambda: left @ right.t()]).median_us
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # not in a graph: its copy node reached 2.6 TB/s where the copy itself reached 4.3
    copy_us = median([elapsed_us(lambda: target.copy_(source)) for _ in range(WARMUP + SAMPLES)][WARMUP:])
    return Rates(2 * GEMM_SIDE**3 / dense_us / 1e6, 2 * COPY_BYTES / copy_us / 1e3)


def roofline_bound_us(
    m: int, k: int, n: int, *, density: float, weight_bytes: int, element_bytes: int, rates: Rates
) -> float:
    """max(2·M·K·N·density / dense rate, bytes of weights, X and Y / copy rate): the roofline bound in microseconds."""
    compute_us = 2 * m * k * n * density / (rates.dense_tflops * 1e6)
    moved = weight_bytes + m * (k + n) * element_bytes
    return max(compute_us, moved / (rates.copy_gb_per_s * 1e3))


def row_of(setting: Setting, provider: Provider, measured: Measured, rates: Rates, *, commit: str) -> Row:
    """The row, without comparisons to dense and to the fastest peer."""
    shape, latency, gpu = setting.shape, measured.latency, torch.cuda.get_device_name()
    outputs = provider.outputs or shape.n
    roofline_us = roofline_bound_us(
        shape.m,
        shape.k,
        outputs,
        density=(1 - provider.sparsity) * shape.n / outputs,
        weight_bytes=provider.weight_bytes,
        element_bytes=setting.dtype.itemsize,
        rates=rates,
    )
    shared = ("granularity", "distribution", "layout", "sparsity")
    weight = {name: getattr(provider, name) for name in shared} | {"dtype": provider.dtype_name}
    sizes = {"m": shape.m, "k": shape.k, "n": shape.n}
    predicted = predict(Product(**sizes, **weight), provider.kernel, gpu) if provider.distribution != PATTERN else None
    times = {"latency_us": latency.median_us, "p20_us": latency.p20_us, "p80_us": latency.p80_us} if latency else {}
    return Row(
        **{name: getattr(provider, name) for name in ("family", "kernel", "pattern", "mask_settings")},
        **sizes,
        **weight,
        **times,
        group_m=provider.granularity if provider.pattern == "n_m" else 0,
        shape=shape.name,
        asked_sparsity=setting.sparsity,
        samples=latency and latency.samples,
        predicted_us=predicted and predicted.latency_us,
        roofline_fraction=latency and roofline_us / latency.median_us,
        relative_error=measured.relative_error,
        correct=measured.correct,
        gpu=gpu,
        torch=torch.__version__,
        triton=_triton_version(),
        cuda=str(torch.version.cuda),
        commit=commit,
        date=str(datetime.date.today()),
    )


@functools.cache
def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return triton.__version__
