"""The interval on a speedup: holds the ratio, widens with noise, is the same for the same samples."""

import pytest
import torch

from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import FEWEST_REPEATS, latency_over_batches, speedup_of


def noisy(center, spread, *, repeats=3, samples=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (center + spread * torch.randn(repeats, samples, generator=generator)).tolist()


def test_steady_times_give_the_ratio():
    found = speedup_of([[4.0] * 5] * 3, [[2.0] * 5] * 3)
    assert (found.speedup, found.speedup_low, found.speedup_high) == (2.0, 2.0, 2.0)


def test_interval_holds_the_ratio():
    found = speedup_of(noisy(10.0, 0.1), noisy(8.0, 0.1, seed=1))
    assert 1 < found.speedup_low < found.speedup < found.speedup_high
    assert found.speedup == pytest.approx(1.25, abs=0.02)


def test_equal_networks_are_no_win():
    found = speedup_of(noisy(10.0, 1.0), noisy(10.0, 1.0, seed=1))
    assert found.speedup_low < 1 < found.speedup_high


def test_noise_and_drift_widen_the_interval():
    calm = speedup_of(noisy(10.0, 0.1), noisy(8.0, 0.1, seed=1))
    rough = speedup_of(noisy(10.0, 1.0), noisy(8.0, 1.0, seed=1))
    drifting = speedup_of([[10.0] * 5, [12.0] * 5, [14.0] * 5], [[8.0] * 5] * 3)
    assert rough.speedup_high - rough.speedup_low > calm.speedup_high - calm.speedup_low
    assert (drifting.speedup_low, drifting.speedup, drifting.speedup_high) == (1.25, 1.5, 1.75)


def test_repeats_must_match():
    with pytest.raises(ValueError, match="3 and 2"):
        speedup_of([[1.0]] * 3, [[1.0]] * 2)


def coverage(repeats: int, *, draws: int = 400, samples: int = 15) -> float:
    """How often the interval holds the true ratio, where repeats drift by 1 % and samples jitter by 1 %."""
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(draws):
        sides = []
        for true in (1.3, 1.0):
            drift = 1 + 0.01 * torch.randn(repeats, 1, generator=generator)
            sides.append((true * drift * (1 + 0.01 * torch.randn(repeats, samples, generator=generator))).tolist())
        found = speedup_of(*sides, draws=400)
        held += found.speedup_low <= 1.3 <= found.speedup_high
    return held / draws


def test_default_interval_holds_the_ratio():
    assert Measure(device="cpu").repeats == FEWEST_REPEATS
    assert coverage(FEWEST_REPEATS) >= 0.93
    assert coverage(3) < 0.93, "which is why no interval of so few is shown"


def test_sizes_weigh_by_occurrence():
    short = {"dense": [[1.0] * 5] * 3, "sparse": [[1.0] * 5] * 3}
    long = {"dense": [[9.0] * 5] * 3, "sparse": [[4.0] * 5] * 3}
    found = latency_over_batches([(3, short), (1, long)])
    assert found["latency_dense_dataset_ms"] == 3.0 and found["latency_sparse_dataset_ms"] == 1.75
    assert found["speedup_dataset"] == pytest.approx(12 / 7)
    assert latency_over_batches([(3, {"dense": short["dense"]})]) == {"latency_dense_dataset_ms": 1.0}
