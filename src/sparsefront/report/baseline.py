"""The dense network that a sparse one is held against: the one trained on for the same budget, where there is one."""

from collections.abc import Sequence

from sparsefront.counted import counted
from sparsefront.report.result import Result


def baseline_quality(result: Result, *, held_out: bool = False) -> float | None:
    """Its metric, a fraction; without a control that of the network before pruning, which was trained for less.

    Args:
        held_out: of the held-out part of train in place of the reporting split.
    """
    continued = result.value_of(_field("dense_continued", held_out))
    return result.value_of(_field("dense", held_out)) if continued is None else continued


def points_lost(result: Result, *, held_out: bool = False) -> float | None:
    """Percentage points that a pruned network is below its baseline, with the sparse kernels where measured, else masked.

    Args:
        held_out: as of `baseline_quality`.
    """
    baseline = baseline_quality(result, held_out=held_out)
    sparse, masked = (result.value_of(_field(side, held_out)) for side in ("sparse", "masked"))
    reached = masked if sparse is None else sparse
    return None if reached is None or baseline is None else 100 * (baseline - reached)


def two_baselines(results: Sequence[Result]) -> list[str]:
    """A line where only some of these results hold the control, so that their points lost are against other networks."""
    held = sum(result.quality.dense_continued is not None for result in results)
    if held in (0, len(results)):
        return []
    return [
        f"points lost are against dense trained on in {counted(held, 'run')}, and against dense as it was before pruning in the "
        f"{len(results) - held} without control=dense_continued"
    ]


def _field(side: str, held_out: bool) -> str:
    return f"val_{side}" if held_out else side
