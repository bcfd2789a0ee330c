"""Speedup as the ratio of two interleaved timings, with its bootstrap interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Speedup:
    """Dense time / sparse time, above 1 = sparse is faster; `results.statistics` says what counts as a win."""

    speedup: float
    speedup_low: float
    speedup_high: float

    def to_json(self, name: str = "speedup") -> dict[str, float]:
        """Fields of the result: `name`, `name`_low and `name`_high."""
        return {name: self.speedup, f"{name}_low": self.speedup_low, f"{name}_high": self.speedup_high}


DENSE_LINEAR, DENSE_CONV2D = DENSE_KERNELS = ("dense_linear", "dense_conv2d")
"""Names in results of the kernels of layers that stayed dense, which a layer's speedup is over."""
CONFIDENCE = 0.95  # mass between the two ends of an interval
FEWEST_REPEATS = 5  # with fewer, an interval covers the true ratio less often than its confidence: none is shown
SPEEDUP_OVER = {"dense": "speedup", "dense_low": "speedup_low_precision"}
"""Baseline -> field of the speedup over it."""


def speedup_of(dense_ms: list[list[float]], sparse_ms: list[list[float]], *, draws: int = 2000) -> Speedup:
    """Median over repeats of the ratio of medians, with a two-level bootstrap interval of 95 %.

    Repeats are drawn with replacement and, inside each, the samples, so both the drift between repeats and the jitter
    inside one widen the interval. Few repeats say little about the drift: where it is as large as the jitter (1 %), the interval
    of 3 repeats covers the true ratio 84 to 90 % of the time, that of 5 or more 94 to 95 % (simulated). Callers show none for
    fewer than `FEWEST_REPEATS`.

    Args:
        dense_ms, sparse_ms: one list of samples per repeat; as many repeats on both sides, and lists of equal length within
            a side.
        draws: bootstrap draws; the generator's seed is fixed, so equal samples give an equal interval.
    Returns:
        exactly 1, without a spread, where both sides have the same samples: those of one network.
    """
    return _speedup([(1, dense_ms, sparse_ms)], draws)


def latency_over_batches(timed: Sequence[tuple[int, dict[str, list[list[float]]]]]) -> dict[str, float]:
    """Mean latency per batch over batches of several sizes, and the speedup of their total time.

    Args:
        timed: per size, the number of batches and their samples in milliseconds, one list per repeat: of "dense" and, if
            timed, "dense_low" and "sparse"; others are ignored.
    Returns:
        fields of the result. The interval is that of `speedup_of`, for sums over all batches: one size gives the same.
    """
    from sparsefront.measure.timers import summarize  # late, as torch below: a comparison needs the names above alone

    total = sum(batches for batches, _ in timed)
    sides = [side for side in ("dense", "dense_low", "sparse") if all(side in samples for _, samples in timed)]
    fields = {
        f"latency_{side}_dataset_ms": sum(
            batches * summarize(sum(samples[side], [])).median_ms for batches, samples in timed
        )
        / total
        for side in sides
    }
    for side in sides if "sparse" in sides else ():
        if side != "sparse":
            speedup = _speedup([(batches, samples[side], samples["sparse"]) for batches, samples in timed])
            fields |= speedup.to_json(f"{SPEEDUP_OVER[side]}_dataset")
    return fields


def _speedup(sizes: Sequence[tuple[int, list[list[float]], list[list[float]]]], draws: int = 2000) -> Speedup:
    """Speedup of sums over sizes: (weight, samples of dense, samples of sparse)."""
    import torch

    for _, dense_ms, sparse_ms in sizes:
        if len(dense_ms) != len(sparse_ms):
            counts = f"{len(dense_ms)} and {len(sparse_ms)}"
            raise ValueError(f"expected as many repeats of dense as of sparse, got {counts}")
    if all(dense_ms == sparse_ms for _, dense_ms, sparse_ms in sizes):
        return Speedup(1.0, 1.0, 1.0)
    generator = torch.Generator().manual_seed(0)
    repeats = len(sizes[0][1])
    chosen = torch.randint(repeats, (draws, repeats), generator=generator)
    measured, drawn = [], []
    for weight, *sides in sizes:
        samples = [torch.tensor(side, dtype=torch.float64) for side in sides]  # [repeats, n]
        measured.append(weight * torch.stack([_median(side) for side in samples]))
        drawn.append(weight * torch.stack([_resample_medians(side, chosen, generator) for side in samples]))
    (dense, sparse), (dense_drawn, sparse_drawn) = (torch.stack(medians).sum(0) for medians in (measured, drawn))
    tails = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    low, high = torch.quantile(_median(dense_drawn / sparse_drawn), tails).tolist()
    return Speedup(speedup=_median(dense / sparse).item(), speedup_low=low, speedup_high=high)


def _resample_medians(samples: "Tensor", chosen: "Tensor", generator: "Generator") -> "Tensor":
    """[draws, repeats]: medians of samples [repeats, n], resampled inside the `chosen` repeats [draws, repeats]."""
    import torch

    n = samples.shape[1]
    picks = torch.randint(n, (*chosen.shape, n), generator=generator)
    return _median(samples[chosen.unsqueeze(-1), picks])


def _median(values: "Tensor") -> "Tensor":
    """Median over the last dim; the mean of the middle two for an even count."""
    return values.quantile(0.5, dim=-1)


MEDIANS_APART = 0.005  # relative: more than rounding to two digits explains


def ratio_of_medians(speedup: float | None, dense_ms: float | None, sparse_ms: float | None) -> float | None:
    """The ratio of two median latencies where it is not the speedup; None where they agree."""
    if speedup is None or not dense_ms or not sparse_ms:
        return None
    shown = dense_ms / sparse_ms
    return None if f"{shown:.2f}" == f"{speedup:.2f}" or abs(shown / speedup - 1) <= MEDIANS_APART else shown


def ratio_apart(speedup: float | None, dense_ms: float | None, sparse_ms: float | None) -> str:
    """A clause that explains why two median latencies give another ratio than the speedup; empty where they agree."""
    shown = ratio_of_medians(speedup, dense_ms, sparse_ms)
    if shown is None:
        return ""
    return f"; the median of the ratios of each repeat, whereas the medians over all repeats that are shown give {shown:.2f}×"
