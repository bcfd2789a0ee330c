"""X through QuACK, tile by tile: what the kernel's op and the benchmark's peer share."""

from torch import Tensor

from sparsefront_kernels.gathered.quack.library import QuackLaunch, grouped_gemm


def tiled_product(
    x: Tensor,
    panels: Tensor,
    kept: Tensor,
    offsets: Tensor,
    order: Tensor | None,
    launch: QuackLaunch,
    *,
    more: int = 0,
) -> Tensor:
    """W · X with the outputs of W as they are stored, tile by tile, where the narrow last tile is filled up.

    Args:
        x: [K, M], aligned as `aligned_by_input` gives it.
        panels, kept, offsets, order: of `QuackPackedWeight`.
        more: rows that are added, not set.
    Returns:
        [tiles · width + more, M] of x's dtype; tiles without inputs give zeros.
    """
    tiles, width, m = len(offsets) - 1, panels.shape[1], x.shape[1]
    y = x.new_empty(tiles * width + more, m)
    stored = y[: tiles * width]
    if len(kept) == 0 or m == 0:
        stored.zero_()
        return y
    groups = stored.view(tiles, width, m).transpose(1, 2)
    order = order if launch.longest_first else None
    grouped_gemm(x.t(), panels, groups, offsets=offsets, kept=kept, order=order, launch=launch)
    return y
