"""A measurement as a row of the results."""

import datetime
import functools

import torch

from sparsefront_kernels.bench.masks import PATTERN
from sparsefront_kernels.bench.provider import Measured, Provider
from sparsefront_kernels.bench.roofline import Rates, roofline_bound_us
from sparsefront_kernels.bench.row import Row
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.performance_model import Product, predict


def row_of(setting: Setting, provider: Provider, measured: Measured, rates: Rates, *, commit: str) -> Row:
    """The row without its comparison to dense and to the fastest peer."""
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
    product = Product(
        m=shape.m,
        k=shape.k,
        n=shape.n,
        sparsity=provider.sparsity,
        granularity=provider.granularity,
        distribution=provider.distribution,
        dtype=provider.dtype_name,
        layout=provider.layout,
    )
    predicted = None if provider.distribution == PATTERN else predict(product, provider.kernel, gpu)
    return Row(
        family=provider.family,
        kernel=provider.kernel,
        pattern=provider.pattern,
        granularity=provider.granularity,
        distribution=provider.distribution,
        mask_settings=provider.mask_settings,
        group_m=provider.granularity if provider.pattern == "n_m" else 0,
        dtype=provider.dtype_name,
        shape=shape.name,
        m=shape.m,
        k=shape.k,
        n=shape.n,
        sparsity=provider.sparsity,
        asked_sparsity=setting.sparsity,
        layout=provider.layout,
        latency_us=latency and latency.median_us,
        p20_us=latency and latency.p20_us,
        p80_us=latency and latency.p80_us,
        samples=latency and latency.samples,
        predicted_us=predicted and predicted.latency_us,
        dense_us=None,
        baseline="",
        baseline_us=None,
        speedup=None,
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
