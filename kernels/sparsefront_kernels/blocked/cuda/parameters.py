"""Launch parameters of the Hopper kernel."""

from dataclasses import dataclass

from sparsefront_kernels.gathered.sm90_schedule import ALL

CLUSTERS = (1, 2, 4)  # blocks
SPLITS = (2, 4)  # blocks that share the k-blocks of a work tile
COLUMNS_OF_SPLIT = 64  # of such a tile
_REACHED_BY_FOUR = 0.85  # of the SMs by clusters of four: a part of the GPU has no multiple of four


@dataclass(frozen=True, order=True)
class BlockedLaunch:
    """Launch parameters.

    Args:
        cluster: blocks of the grid, 1, 2 or 4, that compute the same outputs for different rows of X: each brings a part of the
            weights to all of them.
        splits: or, where `cluster` is 1, blocks that share the k-blocks of one work tile of 64 rows of X and add up through their
            shared memories.
        raster_swizzle: CTA tiles that go through all rows of X before the next ones begin.
        pdl: programmatic dependent launch: blocks may start before the previous kernel has ended, and wait for it before
            they read anything.
    """

    cluster: int
    raster_swizzle: int = ALL
    splits: int = 1
    pdl: bool = True


def clusters_of(cluster: int, num_sms: int) -> int:
    """About how many clusters run at the same time; the library knows it exactly for the GPU at hand."""
    return max(1, int(num_sms * (_REACHED_BY_FOUR if cluster > 2 else 1.0)) // cluster)
