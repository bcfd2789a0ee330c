"""Rasterization: in which order programs walk over the tiles of Y."""

import triton
import triton.language as tl


@triton.jit
def swizzled_tile(program, row_blocks, column_blocks, RASTER_SWIZZLE: tl.constexpr):
    """Block row and block column of a program.

    Programs that run at the same time share RASTER_SWIZZLE block rows of X and go through the columns together, so that both
    the rows of X and the weights they read stay in L2.
    """
    per_swizzle = RASTER_SWIZZLE * column_blocks
    first_row = (program // per_swizzle) * RASTER_SWIZZLE
    rows = tl.minimum(row_blocks - first_row, RASTER_SWIZZLE)  # at the end fewer rows are left
    within = program % per_swizzle
    return first_row + within % rows, within // rows


INTERPRETED = not isinstance(swizzled_tile, triton.runtime.JITFunction)
