"""GPU timing of calls: CUDA graph replays, timed by events, with operands that are not in cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

import torch

SAMPLES, WARMUP = 20, 5
LONG_CALL_US, LONG_WARMUP = 2000.0, 1  # calls this long need little warm-up
LONGEST_US, FEWEST_SAMPLES = 100_000.0, 3  # limit for all replays: long calls vary little
SHORTEST_REPLAY_US = 200.0  # approximate duration of a replay: events have a resolution of about half a microsecond
MOST_CALLS = 64  # per replay, unless operands have to rotate
MOST_COPIES = 512  # enough sets of operands of 240 KB to fill the 60 MB of an H200's L2 twice
ROUGH_CALLS = 8


@dataclass(frozen=True)
class Latency:
    """Microseconds of one call: median, 20th and 80th percentile over the replays."""

    median_us: float
    p20_us: float
    p80_us: float
    samples: int


def copies_for(operand_bytes: int, l2_bytes: int, *, most: int = MOST_COPIES) -> int:
    """Number of sets of operands that together occupy twice the L2 cache."""
    return max(1, min(most, -(-2 * l2_bytes // max(1, operand_bytes))))


def samples_for(samples: int, replay_us: float) -> int:
    """The requested number of replays; fewer, but at least `FEWEST_SAMPLES`, if they would exceed `LONGEST_US`."""
    return min(samples, max(FEWEST_SAMPLES, int(LONGEST_US / max(replay_us, 1e-3))))


def require_gpu() -> None:
    """Raise RuntimeError without a CUDA device: a CPU time never stands for a GPU time."""
    if not torch.cuda.is_available():
        raise RuntimeError("kernels are timed on a CUDA device, and torch sees none")


def time_calls(calls: Sequence[Callable[[], object]], *, samples: int = SAMPLES) -> Latency:
    """Time calls that do the same work on different operands, sequentially in one graph.

    Args:
        samples: number of replays, reduced for long ones (`samples_for`).
    Raises:
        RuntimeError: there is no GPU, or a call cannot be captured.
    """
    require_gpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:  # compile and allocate workspaces; kernels may also prefetch what they read before
            call()
    torch.cuda.current_stream().wait_stream(side)
    # estimate with a graph too: eager calls of a few microseconds are limited by launches on the CPU
    few, trial = calls[:ROUGH_CALLS], torch.cuda.CUDAGraph()
    with _recording(trial, side):
        held = [call() for call in few]
    trial.replay()
    rough_us = elapsed_us(trial.replay) / len(few)
    del held, trial
    rounds = max(1, min(MOST_CALLS // len(calls), int(SHORTEST_REPLAY_US / max(rough_us * len(calls), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with _recording(graph, side):
        held = [call() for _ in range(rounds) for call in calls]  # keep outputs, so that each call has its own
    samples = samples_for(samples, rough_us * rounds * len(calls))
    warmup = LONG_WARMUP if rough_us > LONG_CALL_US else WARMUP
    taken = [elapsed_us(graph.replay) / (rounds * len(calls)) for _ in range(warmup + samples)][warmup:]
    del held
    tenths = quantiles(taken, n=10, method="inclusive")
    return Latency(median(taken), tenths[1], tenths[7], samples)


def elapsed_us(function: Callable[[], object]) -> float:
    """Device time of one call including its launches, by events on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """`torch.cuda.graph` without emptying the allocator's cache, which every call would have to refill."""
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
