"""How long a call takes on the GPU: CUDA-graph replays, timed by events, on operands that no cache still holds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

import torch

SAMPLES, WARMUP = 20, 5
LONG_CALL_US, LONG_WARMUP = 2000.0, 1  # a call this long warms the clocks by itself
LONGEST_US, FEWEST_SAMPLES = 100_000.0, 3  # of all replays together: long calls vary little
SHORTEST_REPLAY_US = (
    200.0  # a replay holds as many calls as take about this long: events tick in about half a microsecond
)
MOST_CALLS = 64  # of a replay, but for operands that have to rotate
MOST_COPIES = 512  # so many sets of operands of 240 KB fill the 60 MB of an H200's L2 twice
ROUGH_CALLS = 8


@dataclass(frozen=True)
class Latency:
    """Microseconds of one call: median, 20th and 80th percentile over so many replays."""

    median_us: float
    p20_us: float
    p80_us: float
    samples: int


def copies_for(operand_bytes: int, l2_bytes: int, *, most: int = MOST_COPIES) -> int:
    """How many sets of operands must take turns so that together they hold twice the L2 cache."""
    return max(1, min(most, -(-2 * l2_bytes // max(1, operand_bytes))))


def samples_for(samples: int, replay_us: float) -> int:
    """As many replays as are asked for; fewer, but at least `FEWEST_SAMPLES`, where they would take longer than `LONGEST_US`."""
    return min(samples, max(FEWEST_SAMPLES, int(LONGEST_US / max(replay_us, 1e-3))))


def require_gpu() -> None:
    """Raise RuntimeError where there is no CUDA device: a CPU's time never stands for a GPU's."""
    if not torch.cuda.is_available():
        raise RuntimeError("kernels are timed on a CUDA device, and torch sees none")


def time_calls(calls: Sequence[Callable[[], object]], *, samples: int = SAMPLES) -> Latency:
    """Time calls that do the same work on different operands, one after the other in one graph.

    Args:
        samples: replays, of long ones fewer (`samples_for`).
    Raises:
        RuntimeError: there is no GPU, or a call cannot be recorded in a graph.
    """
    require_gpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:  # the first compiles and makes workspaces; a kernel may read early what it has read before
            call()
    torch.cuda.current_stream().wait_stream(side)
    # roughly by a graph as well: eager calls of a few microseconds take as long as their launches on the CPU
    few, trial = calls[:ROUGH_CALLS], torch.cuda.CUDAGraph()
    with _recording(trial, side):
        held = [call() for call in few]
    trial.replay()
    rough_us = elapsed_us(trial.replay) / len(few)
    del held, trial
    rounds = max(1, min(MOST_CALLS // len(calls), int(SHORTEST_REPLAY_US / max(rough_us * len(calls), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with _recording(graph, side):
        held = [call() for _ in range(rounds) for call in calls]  # held: each call keeps an output of its own
    samples = samples_for(samples, rough_us * rounds * len(calls))
    warmup = LONG_WARMUP if rough_us > LONG_CALL_US else WARMUP
    taken = [elapsed_us(graph.replay) / (rounds * len(calls)) for _ in range(warmup + samples)][warmup:]
    del held
    tenths = quantiles(taken, n=10, method="inclusive")
    return Latency(median(taken), tenths[1], tenths[7], samples)


def elapsed_us(function: Callable[[], object]) -> float:
    """Device time of one call with its launches, by events on the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """`torch.cuda.graph` without what it does first: it empties the allocator's cache, which every call then refills."""
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
