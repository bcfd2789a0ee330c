"""What the GPU of one rank does during its training steps, by kind of kernel, and when it does nothing."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

EXCHANGE = "exchange"
KINDS = {  # the first that a kernel's name matches
    EXCHANGE: re.compile("nccl", re.IGNORECASE),
    "generated": re.compile("^triton_"),  # by torch.compile; the rest of such a name tells what was fused
    "attention": re.compile("fmha|flash|cudnn.*sdpa|mha_", re.IGNORECASE),
    "products": re.compile("gemm|nvjet|cutlass|xmma|splitk", re.IGNORECASE),
    "optimizer": re.compile("multi_tensor|foreach|adam", re.IGNORECASE),
    "masks": re.compile("masked_fill", re.IGNORECASE),
    "copies": re.compile("memcpy|memset|copy", re.IGNORECASE),
}
OTHERS = "others"


@dataclass(frozen=True)
class Kernel:
    """One kernel as the profiler saw it; times in microseconds."""

    name: str
    start: float
    end: float


def kind(name: str) -> str:
    """What a kernel does, by its name."""
    return next((what for what, pattern in KINDS.items() if pattern.search(name)), OTHERS)


def covered_us(kernels: Iterable[Kernel]) -> float:
    """How long at least one of them runs."""
    total, end = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0.0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
    return total


def step_times_ms(kernels: list[Kernel], steps: int, wall_s: float) -> dict[str, float]:
    """Milliseconds of one step.

    Returns:
        `wall_ms`; `idle_ms`, when no kernel runs; `exposed_ms`, when nothing but the exchange of gradients runs; then the time of
        each kind, which may add up to more, since kernels overlap.
    """
    per_step = 1e-3 / steps
    everything = covered_us(kernels)
    computing = covered_us(kernel for kernel in kernels if kind(kernel.name) != EXCHANGE)
    times = {"wall_ms": wall_s * 1e3 / steps, "idle_ms": wall_s * 1e3 / steps - everything * per_step}
    times["exposed_ms"] = (everything - computing) * per_step
    for what in (*KINDS, OTHERS):
        times[f"{what}_ms"] = covered_us(kernel for kernel in kernels if kind(kernel.name) == what) * per_step
    return {name: round(time, 3) for name, time in times.items()}


class ProfileSteps(pl.Callback):
    """Lightning callback that profiles some steps after a warm-up; the queue of the GPU is drained before and after them.

    Attributes:
        kernels, wall_s: of these steps; empty before them.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self.warmup, self.steps = warmup, steps
        self.kernels: list[Kernel] = []
        self.wall_s = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.warmup:
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            self._profile.start()
            self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            self._began.record()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.warmup + self.steps - 1:
            self._ended.record()
            torch.cuda.synchronize()
            self._profile.stop()
            self.wall_s = self._began.elapsed_time(self._ended) * 1e-3
            self.kernels = [
                Kernel(event.name, event.time_range.start, event.time_range.end)
                for event in self._profile.events()
                if event.device_type == DeviceType.CUDA
            ]
