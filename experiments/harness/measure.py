"""Profiled GPU kernels: their times, which of them are products with weights, and a CSV of them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.harness.rows import replace_lines
from sparsefront.artifacts.lease import held_alone

PROFILED_CALLS = 3
MOST = 12  # kernels of a profile that are named
# Products with weights, whoever's: cuBLAS (nvjet, cutlass, gemm, xmma), cuSPARSELt (sparse ones among them), ours.
PRODUCT = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|gemv|gathered|blocked|(?<![a-z])(n_m|csr|ell)_|spmm|bsr|splitk|sparse",
    re.IGNORECASE,
)
NO_PRODUCT = re.compile(r"fmha|flash|attention|mha_|softmax", re.IGNORECASE)


@dataclass(frozen=True)
class Kernel:
    """One profiled kernel; times in microseconds."""

    name: str
    start: float
    end: float


def covered_us(kernels: Iterable[Kernel]) -> float:
    """Microseconds in which at least one of the kernels runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted((kernel.start, kernel.end) for kernel in kernels):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def gpu_profile() -> profile:
    """A profiler that records GPU kernels only."""
    return profile(activities=[ProfilerActivity.CUDA])


def kernels_of(taken: profile) -> list[Kernel]:
    """GPU kernels in a finished profile."""
    return [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in taken.events()
        if event.device_type == DeviceType.CUDA
    ]


def kernel_times_us(call: Callable[[], Any]) -> dict[str, float]:
    """Profile a call: GPU kernel name -> microseconds per call, longest first."""
    call()
    torch.cuda.synchronize()
    with gpu_profile() as taken:
        for _ in range(PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    times = microseconds_by_kernel(kernels_of(taken))
    return {name: total / PROFILED_CALLS for name, total in times.most_common()}


def microseconds_by_kernel(kernels: Iterable[Kernel]) -> Counter[str]:
    """Kernel name -> microseconds, each from the end of all that began before it, so that overlapping kernels count once."""
    times: Counter[str] = Counter()
    until = float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start, kernel.end)):
        times[kernel.name] += max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return times


def is_product(kernel: str) -> bool:
    """Whether a kernel, by its name, multiplies by weights; attention's products are its own."""
    return bool(PRODUCT.search(kernel)) and not NO_PRODUCT.search(kernel)


def gemm_share(times_us: Mapping[str, float]) -> float | None:
    """Of the kernels' time, the fraction of products with weights; None where nothing was seen."""
    total = sum(times_us.values())
    return sum(time for name, time in times_us.items() if is_product(name)) / total if total else None


def write_profile(file: Path, key: Mapping[str, str], side: str, times_us: Mapping[str, float]) -> None:
    """Put the longest kernels of a row into a CSV, and what the others take together, instead of an earlier profile of it.

    One process at a time: what another one added while the file is written anew would be lost.
    """
    total = sum(times_us.values())
    longest = dict(list(times_us.items())[:MOST])
    lines = [(name, time, is_product(name)) for name, time in longest.items()]
    lines.append(("(all others)", total - sum(longest.values()), ""))
    rows = [
        {**key, "side": side, "kernel": name, "us_per_forward": f"{time:.1f}"}
        | {"share": f"{time / total:.4f}" if total else "", "is_product": str(product)}
        for name, time, product in lines
    ]
    with held_alone(file):
        replace_lines(file, {**key, "side": side}, rows)
