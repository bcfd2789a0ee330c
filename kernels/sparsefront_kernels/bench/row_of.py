"""A measurement as a row of the results."""

import datetime
import functools

import torch

from sparsefront_kernels.bench.contender import Contender, Measured
from sparsefront_kernels.bench.floor import Rates, floor_us
from sparsefront_kernels.bench.masks import PATTERN
from sparsefront_kernels.bench.row import Row
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.model import Product, predicted_us


def row_of(setting: Setting, contender: Contender, measured: Measured, rates: Rates, *, commit: str) -> Row:
    """The row, but for what it is held against: dense, and the fastest peer."""
    shape, latency, gpu = setting.shape, measured.latency, torch.cuda.get_device_name()
    outputs = contender.outputs or shape.n
    floor = floor_us(
        shape.m,
        shape.k,
        outputs,
        density=(1 - contender.sparsity) * shape.n / outputs,
        weight_bytes=contender.weight_bytes,
        element_bytes=setting.dtype.itemsize,
        rates=rates,
    )
    product = Product(
        m=shape.m,
        k=shape.k,
        n=shape.n,
        sparsity=contender.sparsity,
        granularity=contender.granularity,
        distribution=contender.distribution,
        dtype=contender.dtype_name,
        layout=contender.layout,
    )
    return Row(
        family=contender.family,
        kernel=contender.kernel,
        pattern=contender.pattern,
        granularity=contender.granularity,
        distribution=contender.distribution,
        mask_settings=contender.mask_settings,
        group_m=contender.granularity if contender.pattern == "n_m" else 0,
        dtype=contender.dtype_name,
        shape=shape.name,
        m=shape.m,
        k=shape.k,
        n=shape.n,
        sparsity=contender.sparsity,
        asked_sparsity=setting.sparsity,
        layout=contender.layout,
        latency_us=latency and latency.median_us,
        p20_us=latency and latency.p20_us,
        p80_us=latency and latency.p80_us,
        samples=latency and latency.samples,
        predicted_us=None if contender.distribution == PATTERN else predicted_us(contender.kernel, product, gpu),
        dense_us=None,
        baseline="",
        baseline_us=None,
        speedup=None,
        roofline_fraction=latency and floor / latency.median_us,
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
