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
