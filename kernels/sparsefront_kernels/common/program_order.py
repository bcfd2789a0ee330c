"""In which order programs walk over the tiles of Y."""

import triton
import triton.language as tl


@triton.jit
def output_tile(program, row_blocks, column_blocks, GROUP: tl.constexpr):
    """Block row and block column of a program.

    Programs that run at the same time share GROUP block rows of X and go through the columns together, so that both
    the rows of X and the weights they read stay in L2.
    """
    per_group = GROUP * column_blocks
    first_row = (program // per_group) * GROUP
    rows = tl.minimum(row_blocks - first_row, GROUP)  # the last group may be lower
    within = program % per_group
    return first_row + within % rows, within // rows


INTERPRETED = not isinstance(output_tile, triton.runtime.JITFunction)
