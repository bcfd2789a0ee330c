"""Networks timed in turn, for about as long as a study can afford."""

import time
from collections.abc import Callable
from typing import Any

from sparsefront.measure.settings import FEWEST_SAMPLES, Measure
from sparsefront.measure.timers import time_interleaved

SECONDS_PER_REPEAT = 0.8


def timed_in_turn(calls: dict[str, Callable[[], Any]], settings: Measure) -> dict[str, list[list[float]]]:
    """name -> samples in milliseconds, one list per repeat, taken in turn on the measured device.

    At most `settings.samples` of them, fewer (FEWEST_SAMPLES at least) where a repeat would take longer than SECONDS_PER_REPEAT.
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
