"""The interval on a speedup: holds the ratio, widens with noise, is the same for the same samples."""

import pytest
import torch

from sparsefront.measure.end_to_end import speedup_of


def noisy(center, spread, *, repeats=3, samples=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (center + spread * torch.randn(repeats, samples, generator=generator)).tolist()


def test_steady_times_give_the_ratio_and_no_width():
    found = speedup_of([[4.0] * 5] * 3, [[2.0] * 5] * 3)
    assert (found.speedup, found.speedup_low, found.speedup_high) == (2.0, 2.0, 2.0)


def test_the_interval_holds_the_ratio_and_excludes_one():
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


def test_equal_samples_give_an_equal_interval():
    assert speedup_of(noisy(10.0, 1.0), noisy(9.0, 1.0)) == speedup_of(noisy(10.0, 1.0), noisy(9.0, 1.0))


def test_repeats_must_match():
    with pytest.raises(ValueError, match="3 and 2"):
        speedup_of([[1.0]] * 3, [[1.0]] * 2)
