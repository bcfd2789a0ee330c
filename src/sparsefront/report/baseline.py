"""The dense network that a sparse one is held against: the one trained on for the same budget, where there is one."""

from sparsefront.report.result import Result


def baseline_quality(result: Result) -> float | None:
    """Its metric, a fraction; without a control that of the network before pruning, which was trained for less."""
    quality = result.quality
    return quality.dense if quality.dense_continued is None else quality.dense_continued


def points_lost(result: Result) -> float | None:
    """Percentage points that a pruned network is below its baseline, with the sparse kernels where measured, else masked."""
    quality, baseline = result.quality, baseline_quality(result)
    reached = quality.masked if quality.sparse is None else quality.sparse
    return None if reached is None or baseline is None else 100 * (baseline - reached)
