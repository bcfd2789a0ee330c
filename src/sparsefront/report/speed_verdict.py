"""Whether a sparse network counts as faster than dense: the one rule of every table, sentence and curve."""

from sparsefront.report.points import Point

# Networks with the same layers, timed in turn, have come out up to 0.9 % apart on an H200:
# where memory lies does that much, and repeating the timing in one process does not average it out.
TIMING_NOISE = 0.01
# Of the dense flops of the prunable layers, by sparse kernels: for a speedup to count as theirs.
LEAST_SPARSE_SHARE = 0.5

FASTER, SLOWER, UNCLEAR, MOSTLY_DENSE = "faster", "slower", "no clear difference", "mostly dense kernels"


def speed_verdict(low: float, high: float, sparse_flops_share: float | None = None) -> str:
    """`FASTER` or `SLOWER` where the whole interval of a speedup lies beyond what noise of the timing does, else `UNCLEAR`.

    Args:
        low, high: ends of the interval; twice the speedup where there is none.
        sparse_flops_share: with less than `LEAST_SPARSE_SHARE` what would be faster is `MOSTLY_DENSE`; None where it is
            not known, as of older results: then the interval alone decides.
    """
    if high < 1 - TIMING_NOISE:
        return SLOWER
    if low <= 1 + TIMING_NOISE:
        return UNCLEAR
    return MOSTLY_DENSE if sparse_flops_share is not None and sparse_flops_share < LEAST_SPARSE_SHARE else FASTER


def against_dense(point: Point) -> str:
    """The verdict on a point by speedup: by the ends of all of its runs' intervals, and the smallest share among them."""
    shares = (result.kernels.sparse_flops_share for result in point.candidate.results)
    least_share = min((share for share in shares if share is not None), default=None)
    return speed_verdict(*(point.x_interval or (point.x, point.x)), least_share)
