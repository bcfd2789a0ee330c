"""How many samples a kernel gets: fewer where it is too slow to be chosen."""

import math

import pytest
import torch

from sparsefront.measure import kernel_timer
from sparsefront.measure.kernel_timer import FEWEST, SAMPLES, WARMUP


@pytest.mark.parametrize(
    ("took_ms", "at_most_us", "calls"),
    [
        (0.1, math.inf, WARMUP + SAMPLES),
        (0.1, 120.0, WARMUP + SAMPLES),
        (0.1, 80.0, WARMUP + FEWEST),
        (60.0, math.inf, FEWEST + 1),
    ],
)
def test_the_slow_ones_get_few_samples(took_ms, at_most_us, calls, monkeypatch):
    taken = []
    monkeypatch.setattr(kernel_timer, "cuda_ms", lambda function, device: taken.append(took_ms) or took_ms)
    found = kernel_timer._median_us(lambda: None, torch.device("cpu"), per_sample=1, at_most_us=at_most_us)
    assert found == pytest.approx(took_ms * 1e3) and len(taken) == calls


class Graph:
    def replay(self):
        raise AssertionError("timed by the patched clock alone")


@pytest.mark.parametrize(
    ("call_us", "replay_us", "found_us"),
    [(250_000.0, 90.0, 90.0), (9_000.0, 8_000.0, 8_000.0), (100.0, 90.0, 90.0)],
    ids=["a library that keeps the processor busy", "a slow kernel", "a fast kernel"],
)
def test_time_of_the_processor_makes_no_kernel_slow(call_us, replay_us, found_us, monkeypatch):
    recorded = []
    monkeypatch.setattr(kernel_timer, "record", lambda calls, warmup: (recorded.append(len(calls)) or Graph(), []))
    monkeypatch.setattr(
        kernel_timer,
        "cuda_ms",
        lambda function, device: (
            (replay_us if isinstance(getattr(function, "__self__", None), Graph) else call_us) / 1e3
        ),
    )
    found = kernel_timer._time([lambda: None], torch.device("cpu"), at_most_us=120.0)
    assert found.latency_us == pytest.approx(found_us) and found.eager_because is None
    assert len(recorded) == (2 if (call_us, replay_us) == (250_000.0, 90.0) else 1)
