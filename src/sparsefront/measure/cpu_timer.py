"""How long one layer or product takes on a CPU: of references, for a search that has no GPU. Never stands for a GPU latency."""

import time
from statistics import median
from typing import Any

import torch
from torch import nn

from sparsefront.measure.kernel_timer import KernelTime, time_layer

WARMUP, SAMPLES, FEWEST = 1, 15, 3
BUDGET_SECONDS = 0.1


def time_where_it_is(layer: nn.Module, x: torch.Tensor, *more: Any) -> KernelTime:
    """Time layer(x, ...) on the device of x: as `kernel_timer.time_layer` on a GPU, else by `perf_counter`: the median over
    SAMPLES calls, or over fewer (FEWEST at least) once BUDGET_SECONDS are spent.
    """
    if x.is_cuda:
        return time_layer(layer, x, *more)
    taken: list[float] = []
    with torch.inference_mode():
        for turn in range(WARMUP + SAMPLES):
            start = time.perf_counter()
            layer(x, *more)
            if turn >= WARMUP:
                taken.append(time.perf_counter() - start)
            if sum(taken) > BUDGET_SECONDS and len(taken) >= FEWEST:
                break
    return KernelTime(median(taken) * 1e6)
