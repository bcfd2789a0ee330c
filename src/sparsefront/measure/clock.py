"""The GPU's clock while it does the work that was timed."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch

from sparsefront.gpu_query import TIMEOUT_S, GpuQuery


def clock_under_load(calls: Sequence[Callable[[], object]], device: torch.device) -> float | None:
    """SM clock in MHz of the GPU in use, read while it runs these calls in turn, one at a time as the timer does.

    For use right after a timing, with what was timed: an idle GPU clocks down, and the tool that reads the clock would
    disturb the timing itself. Returns None on a CPU, or where the driver does not tell.
    """
    if device.type != "cuda":
        return None
    query, ends = GpuQuery("clocks.sm", device), time.perf_counter() + TIMEOUT_S
    for call in cycle(calls):
        if query.answered or time.perf_counter() > ends:
            break
        call()
        torch.cuda.synchronize(device)
    clock = query.answer(timeout_s=0.1)
    return float(clock) if clock and clock.isdigit() else None
