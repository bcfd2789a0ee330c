"""Measuring: for each shape dense first, then peers and our kernels at each sparsity, all in one process."""

import datetime
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from sparsefront_kernels.bench.baselines import DENSE, PEERS
from sparsefront_kernels.bench.contender import Contender, measure
from sparsefront_kernels.bench.floor import Rates, floor_us, measured_rates
from sparsefront_kernels.bench.ours import gathered_contenders
from sparsefront_kernels.bench.row import Row
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.shapes import Shape
from sparsefront_kernels.bench.timing import require_gpu

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Args:
        shapes: the products.
        dtypes: names of `DTYPES`.
        sparsities: fractions of zeros.
        granularities, distributions: of the gathered weights.
        peers: names of `PEERS`.
        kernels: only our kernels of these names; empty for all.
        tune: whether kernels are tuned before they are timed.
        samples: graph replays per measurement.
        commit: of the code, for the rows.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    sparsities: tuple[float, ...]
    granularities: tuple[int, ...]
    distributions: tuple[str, ...]
    peers: tuple[str, ...]
    kernels: tuple[str, ...]
    tune: bool
    samples: int
    commit: str


def run(plan: Plan, *, say: Callable[[str], None]) -> list[Row]:
    """Measure everything of the plan on the current CUDA device.

    Args:
        say: takes progress, and why a peer could not run.
    Raises:
        RuntimeError: there is no GPU.
    """
    require_gpu()
    rows = []
    for dtype_name in plan.dtypes:
        rates = measured_rates(DTYPES[dtype_name], torch.device("cuda"))
        say(f"{dtype_name}: dense {rates.dense_tflops:.0f} TFLOP/s, copy {rates.copy_gb_per_s:.0f} GB/s")
        for shape in plan.shapes:
            rows += _measure_shape(plan, shape, dtype_name, rates, say)
    return rows


def _measure_shape(plan: Plan, shape: Shape, dtype_name: str, rates: Rates, say: Callable[[str], None]) -> list[Row]:
    device = torch.device("cuda", torch.cuda.current_device())
    setting = Setting(shape, DTYPES[dtype_name], 0.0, device)
    dense = [_row(plan, setting, dtype_name, contender, rates) for contender in DENSE(setting)]
    dense_us = min(row.latency_us for row in dense if row.latency_us is not None)
    rows = [_against(row, dense_us, None) for row in dense]
    for sparsity in plan.sparsities:
        setting = Setting(shape, DTYPES[dtype_name], sparsity, device)
        peers = [row for name in plan.peers for row in _peer_rows(plan, setting, dtype_name, name, rates, say)]
        right = [row for row in peers if row.latency_us is not None]
        best = min(right, key=lambda row: row.latency_us, default=None)
        ours = [_row(plan, setting, dtype_name, contender, rates) for contender in _ours(plan, setting)]
        here = [_against(row, dense_us, best) for row in (*peers, *ours)]
        for row in here:
            if row.latency_us is not None:
                who = f"{shape.name} {sparsity} {row.kernel} g={row.granularity}"
                say(f"{who}: {row.latency_us:.1f} us x{row.speedup:.2f}")
        rows += here
    return rows


def _ours(plan: Plan, setting: Setting) -> Iterator[Contender]:
    for granularity in plan.granularities:
        for distribution in plan.distributions:
            found = gathered_contenders(setting, granularity=granularity, distribution=distribution, tune=plan.tune)
            yield from (one for one in found if not plan.kernels or one.kernel in plan.kernels)


def _peer_rows(
    plan: Plan, setting: Setting, dtype_name: str, name: str, rates: Rates, say: Callable[[str], None]
) -> list[Row]:
    """The fastest setting of each kernel and granularity of a peer; a peer that cannot run is named and left out."""
    best: dict[tuple[str, int], Row] = {}
    try:
        contenders = PEERS[name](setting)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        say(f"{setting.shape.name} {name} cannot run: {_first_line(error)}")
        return []
    for contender in contenders:
        try:
            row = _row(plan, setting, dtype_name, contender, rates)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            torch.cuda.synchronize()
            say(f"{setting.shape.name} {name} cannot run: {_first_line(error)}")
            continue
        known = best.get((row.kernel, row.granularity))
        if known is None or (row.latency_us or torch.inf) < (known.latency_us or torch.inf):
            best[row.kernel, row.granularity] = row
    return list(best.values())


def _row(plan: Plan, setting: Setting, dtype_name: str, contender: Contender, rates: Rates) -> Row:
    measured = measure(contender, samples=plan.samples)
    gc.collect()
    latency = measured.latency
    shape = setting.shape
    floor = floor_us(
        shape.m,
        shape.k,
        shape.n,
        density=1 - contender.sparsity,
        weight_bytes=contender.weight_bytes,
        element_bytes=setting.dtype.itemsize,
        rates=rates,
    )
    return Row(
        family=contender.family,
        kernel=contender.kernel,
        pattern=contender.pattern,
        granularity=contender.granularity,
        distribution=contender.distribution,
        group_m=4 if contender.pattern == "n_m" else 0,
        dtype=dtype_name,
        shape=shape.name,
        m=shape.m,
        k=shape.k,
        n=shape.n,
        sparsity=contender.sparsity,
        layout=contender.layout,
        latency_us=latency and latency.median_us,
        p20_us=latency and latency.p20_us,
        p80_us=latency and latency.p80_us,
        dense_us=None,
        baseline="",
        baseline_us=None,
        speedup=None,
        roofline_fraction=latency and floor / latency.median_us,
        relative_error=measured.relative_error,
        correct=measured.correct,
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=_triton_version(),
        cuda=str(torch.version.cuda),
        commit=plan.commit,
        date=str(datetime.date.today()),
    )


def _against(row: Row, dense_us: float, best: Row | None) -> Row:
    """The row beside what else was measured."""
    return replace(
        row,
        dense_us=dense_us,
        baseline=f"{best.kernel} {best.granularity}" if best else "",
        baseline_us=best and best.latency_us,
        speedup=row.latency_us and dense_us / row.latency_us,
    )


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return triton.__version__


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
