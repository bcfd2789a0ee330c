"""Which GPU kernels a forward runs, and for how long."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from sparsefront.artifacts.lease import held_alone
from sparsefront.results.store import append_line, drop_lines

CALLS, MOST = 3, 12
# Products with weights, whoever's: cuBLAS (nvjet, cutlass, gemm, xmma), cuSPARSELt (sparse ones among them), ours.
PRODUCT = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|gemv|gathered|blocked|(?<![a-z])(n_m|csr|ell)_|spmm|bsr|splitk|sparse",
    re.IGNORECASE,
)
NO_PRODUCT = re.compile(r"fmha|flash|attention|mha_|softmax", re.IGNORECASE)


def is_product(kernel: str) -> bool:
    """Whether a kernel, by its name, multiplies by weights; attention's products are its own."""
    return bool(PRODUCT.search(kernel)) and not NO_PRODUCT.search(kernel)


def kernel_times_us(call: Callable[[], Any]) -> dict[str, float]:
    """Name of a GPU kernel -> microseconds per forward, the longest first."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as taken:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    for event in taken.events():
        if event.device_type == DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
    return {name: total / CALLS for name, total in times.most_common()}


def gemm_share(times_us: dict[str, float]) -> float | None:
    """Of the kernels' time, the fraction of products with weights; None where nothing was seen."""
    total = sum(times_us.values())
    return sum(time for name, time in times_us.items() if is_product(name)) / total if total else None


def write_profile(file: Path, key: dict[str, str], side: str, times_us: dict[str, float]) -> None:
    """Put the longest kernels of a row into a CSV, and what the others take together, in place of an earlier profile of it.

    One process at a time: what another one added while the file is written anew would be lost.
    """
    total = sum(times_us.values())
    longest = dict(list(times_us.items())[:MOST])
    lines = [(name, time, is_product(name)) for name, time in longest.items()]
    lines.append(("(all others)", total - sum(longest.values()), ""))
    with held_alone(file):
        drop_lines(file, key | {"side": side})
        for name, time, product in lines:
            share = f"{time / total:.4f}" if total else ""
            kernel = {"side": side, "kernel": name, "us_per_forward": f"{time:.1f}", "share": share}
            append_line(file, key | kernel | {"is_product": str(product)})
