"""GPU timing: interleaved networks, seconds per step of a measurement, and profiled kernels."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from sparsefront.measure.settings import FEWEST_SAMPLES, Measure
from sparsefront.measure.timers import time_interleaved

SECONDS_PER_REPEAT = 0.8
PROFILED_CALLS = 3


def timed_in_turn(calls: dict[str, Callable[[], Any]], settings: Measure) -> dict[str, list[list[float]]]:
    """Time calls in turn; return name -> samples in milliseconds, one list per repeat.

    Takes `settings.samples` samples per repeat, or fewer (at least FEWEST_SAMPLES) to stay within SECONDS_PER_REPEAT.
    """
    device = settings.torch_device
    start = time.perf_counter()
    time_interleaved(calls, device=device, warmup=settings.warmup, samples=1)
    round_seconds = (time.perf_counter() - start) / (settings.warmup + 1)
    samples = max(FEWEST_SAMPLES, min(settings.samples, int(SECONDS_PER_REPEAT / max(round_seconds, 1e-6))))
    taken: dict[str, list[list[float]]] = {name: [] for name in calls}
    for _ in range(settings.repeats):
        for name, samples_ms in time_interleaved(calls, device=device, warmup=2, samples=samples).items():
            taken[name].append(samples_ms)
    return taken


class Steps:
    """Seconds of named steps, summed over repeated names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())


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
