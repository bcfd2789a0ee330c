"""The one timer: functions measured side by side, every sample kept."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle, islice

import torch

from sparsefront.gpu_sharing.access import alone
from sparsefront.measure.turn_order import balanced_orders


@dataclass(frozen=True)
class LatencySummary:
    """Order statistics of latency samples, in milliseconds."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    n: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def summarise(samples_ms: list[float]) -> LatencySummary:
    """Median, 20th and 80th percentile (linear interpolation) of one or more samples."""
    values = torch.tensor(samples_ms, dtype=torch.float64)
    p20, median, p80 = torch.quantile(values, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).tolist()
    return LatencySummary(median_ms=median, p20_ms=p20, p80_ms=p80, n=len(samples_ms))


def time_interleaved(
    functions: dict[str, Callable[[], object]], *, device: torch.device, warmup: int, samples: int
) -> dict[str, list[float]]:
    """Time functions in turn, so that clocks, heat and neighbors weigh on all of them alike.

    A sample starts on an idle device and ends when the device has finished: what a caller that waits for the answer
    would see, launches included. The order changes from round to round, so that each function follows each other one
    equally often (see `balanced_orders`). Other processes of ours leave the GPU alone meanwhile.

    Args:
        functions: name -> what to time; called without arguments.
        device: cpu (perf_counter) or cuda (events on the current stream, waited for after each sample).
        warmup: rounds thrown away.
        samples: rounds kept.
    Returns:
        name -> all `samples` durations in milliseconds, in the order in which they were taken.
    Raises:
        RuntimeError: a CUDA device is asked for and there is none; a CPU clock never stands in for it.
        ValueError: a device of another kind.
    """
    timer = _timer(device)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    rounds = islice(cycle(balanced_orders(list(functions))), warmup + samples)
    with alone(device):
        for turn, order in enumerate(rounds):
            for name in order:
                duration_ms = timer(functions[name])
                if turn >= warmup:
                    taken[name].append(duration_ms)
    return taken


def _timer(device: torch.device) -> Callable[[Callable[[], object]], float]:
    if device.type == "cpu":
        return _cpu_ms
    if device.type != "cuda":
        raise ValueError(f"no timer for device {device}: latency is measured on cpu or cuda")
    if not torch.cuda.is_available():
        raise RuntimeError("the CUDA timer needs a GPU and there is none here")
    return lambda function: cuda_ms(function, device)


def _cpu_ms(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def cuda_ms(function: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call on a GPU, launches included, by events on the current stream."""
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()  # work left in the queue would be charged to this sample
        start.record()
        function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)
